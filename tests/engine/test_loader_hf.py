from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import SHAPE, new_llama, new_mistral, save_tokenizer

from engine.errors import ModelLoadError
from engine.loader import ModelSource, resolve_model
from engine.model_config import ModelConfig
from kernels.weights import DenseWeight


def dense_weights(source: ModelSource) -> dict[str, torch.Tensor]:
    return {name: weight.data if isinstance(weight, DenseWeight) else weight for name, weight in source.weights()}


def config_of(directory: Path, **values: Any) -> ModelConfig:
    """The config of a config.json with these values beside the usual ones; None removes one."""
    merged = {"architectures": ["LlamaForCausalLM"], **SHAPE, **values}
    (directory / "config.json").write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
    return resolve_model(str(directory)).config()


@pytest.mark.parametrize("max_shard_size", ["1GB", "30KB"], ids=["one file", "sharded"])
def test_weights_are_those_that_were_saved(tmp_path: Path, max_shard_size: str) -> None:
    model = new_llama()
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").is_file() == (max_shard_size == "30KB")
    weights = dense_weights(resolve_model(str(tmp_path)))
    expected = model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_weights_keep_their_stored_type(tmp_path: Path) -> None:
    new_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    source = resolve_model(str(tmp_path))
    assert source.config().dtype == "bfloat16"
    assert {weight.dtype for weight in dense_weights(source).values()} == {torch.bfloat16}


def test_tied_output_layers_are_not_read_twice(tmp_path: Path) -> None:
    new_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    source = resolve_model(str(tmp_path))
    assert source.config().tie_word_embeddings
    assert "lm_head.weight" not in dict(source.weights())


def test_mistral_keeps_its_sliding_window(tmp_path: Path) -> None:
    new_mistral(sliding_window=32).save_pretrained(tmp_path)
    config = resolve_model(str(tmp_path)).config()
    assert (config.architecture, config.sliding_window) == ("MistralForCausalLM", 32)


def test_qwen2_has_biases_of_q_k_and_v_alone_and_qwen3_norms_of_q_and_k(tmp_path: Path) -> None:
    qwen2, qwen3 = (config_of(tmp_path, architectures=[f"Qwen{n}ForCausalLM"], sliding_window=32, use_sliding_window=False) for n in (2, 3))
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm, qwen2.sliding_window) == (True, False, False, None)
    assert (qwen3.attention_bias, qwen3.attention_output_bias, qwen3.qk_norm, qwen3.sliding_window) == (False, False, True, None)


def test_a_window_in_some_of_the_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="set use_sliding_window to false"):
        config_of(tmp_path, architectures=["Qwen2ForCausalLM"], use_sliding_window=True)


def test_mistral_without_a_window_has_full_attention(tmp_path: Path) -> None:
    assert config_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None).sliding_window is None


def test_what_transformers_5_saves_is_understood(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    new_llama(rope_parameters=scaling, attention_bias=True, mlp_bias=True, head_dim=24).save_pretrained(tmp_path)
    config = resolve_model(str(tmp_path)).config()
    assert (config.rope.kind, config.rope.theta, config.rope.rotary_dim) == ("llama3", 500000.0, 24)
    assert config.rope.parameters == {key: scaling[key] for key in scaling if key not in ("rope_type", "rope_theta")}
    assert config.attention_bias
    assert config.mlp_bias
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 24)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_what_transformers_4_saved_is_understood(tmp_path: Path, key: str) -> None:
    config = config_of(tmp_path, rope_theta=20000.0, rope_scaling={key: "linear", "factor": 2.0}, torch_dtype="float16")
    assert (config.rope.kind, config.rope.theta, config.rope.parameters) == ("linear", 20000.0, {"factor": 2.0})
    assert config.dtype == "float16"


def test_old_files_without_rope_settings_get_the_old_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, rope_scaling=None, num_key_value_heads=None)
    assert (config.rope.kind, config.rope.theta, config.rope.rotary_dim) == ("default", 10000.0, 16)
    assert config.num_kv_heads == config.num_heads == 4


@pytest.mark.parametrize("settings", [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}])
def test_a_part_of_the_head_may_be_rotated(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert config_of(tmp_path, **settings).rope.rotary_dim == 8


def test_yarn_extends_the_original_context(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert config_of(tmp_path, rope_scaling=scaling).max_position_embeddings == 1024


def test_the_end_tokens_of_both_files_end_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7, 9], "temperature": 0.6, "top_p": null, "do_sample": true}')
    assert config_of(tmp_path, eos_token_id=2).eos_token_ids == (2, 7, 9)
    assert resolve_model(str(tmp_path)).generation_defaults() == {"temperature": 0.6}


def test_the_tokenizers_own_end_token_ends_a_sequence_too(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert config_of(tmp_path, eos_token_id=7).eos_token_ids == (7, 2)
    settings = {"eos_token": "<|im_end|>", "added_tokens_decoder": {"9": {"content": "<|im_end|>"}, "2": {"content": "</s>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert config_of(tmp_path, eos_token_id=7).eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "names MambaForCausalLM; supported are LlamaForCausalLM, MistralForCausalLM"),
        ({"architectures": None}, "names no architecture"),
        ({"hidden_size": None}, "hidden_size must be a positive whole number, but is None"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive whole number, but is -1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"rope_scaling": {"type": "su"}}, "rotary scaling of kind 'su' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "needs a positive factor"),
        ({"rope_theta": "much"}, "rope_theta 'much'"),
        ({"torch_dtype": "float8_e4m3fn"}, "weights of type float8_e4m3fn are not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq are not supported"),
    ],
)
def test_a_config_that_cannot_be_served_says_which_value_is_at_fault(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        config_of(tmp_path, **values)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        resolve_model(str(tmp_path)).config()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    new_llama().save_pretrained(tmp_path, max_shard_size="30KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=f"lacks 1 of its .* files of weights: {shard.name}"):
        list(resolve_model(str(tmp_path)).weights())


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    new_llama().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged or cut short"):
        list(resolve_model(str(tmp_path)).weights())


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "model.gguf"])
def test_files_that_git_lfs_did_not_fetch_are_told_how_to_get(tmp_path: Path, name: str) -> None:
    new_llama().save_pretrained(tmp_path)
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 1341\n")
    read = {
        "model.safetensors": lambda: list(resolve_model(str(tmp_path)).weights()),
        "tokenizer.json": lambda: resolve_model(str(tmp_path)).tokenizer(),
        "model.gguf": lambda: resolve_model(str(path)),
    }
    with pytest.raises(ModelLoadError, match=rf"{name} only names the file that Git LFS keeps: run `git lfs install`"):
        read[name]()


def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path) -> None:
    config_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret.safetensors"}}')
    with pytest.raises(ModelLoadError, match="not a file of its own directory"):
        list(resolve_model(str(tmp_path)).weights())


def test_pickle_checkpoints_are_never_loaded(tmp_path: Path) -> None:
    config_of(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="pickle checkpoint, which could run any code"):
        list(resolve_model(str(tmp_path)).weights())
    with pytest.raises(ModelLoadError, match="pickle checkpoint, which could run any code"):
        resolve_model(str(tmp_path / "pytorch_model.bin"))


def test_a_directory_without_weights_says_so(tmp_path: Path) -> None:
    config_of(tmp_path)
    with pytest.raises(ModelLoadError, match="has no weights"):
        list(resolve_model(str(tmp_path)).weights())


def test_weights_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config_of(tmp_path)
    save_file({"model.norm.weight": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' is stored as int8"):
        list(resolve_model(str(tmp_path)).weights())


def test_fingerprints_tell_weights_apart(tmp_path: Path) -> None:
    prints = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        new_llama(seed=seed).save_pretrained(tmp_path / name)
        prints.append(resolve_model(str(tmp_path / name)).fingerprint())
    assert prints[0] == prints[1] != prints[2]


def test_the_chat_template_is_found_in_all_its_places(tmp_path: Path) -> None:
    config_of(tmp_path)
    source = resolve_model(str(tmp_path))
    assert source.chat_template() is None
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"chat_template": "one"}')
    assert source.chat_template() == "one"
    settings.write_text('{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "two"}]}')
    assert source.chat_template() == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert source.chat_template() == "three"


def test_the_tokenizer_comes_with_its_special_tokens(tmp_path: Path) -> None:
    config_of(tmp_path)
    save_tokenizer(tmp_path)
    tokenizer = resolve_model(str(tmp_path)).tokenizer()
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", None)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.decode(tokenizer.encode("hello"), skip_special_tokens=True) == "hello"

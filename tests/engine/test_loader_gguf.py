from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from small_models import new_llama, new_qwen2, new_qwen3, write_gguf
from transformers import LlamaConfig, LlamaForCausalLM

from engine.errors import ModelLoadError
from engine.loader import ModelSource, resolve_model
from kernels.weights import QuantizedWeight


def dense_weights(source: ModelSource) -> dict[str, torch.Tensor]:
    return {name: weight if isinstance(weight, torch.Tensor) else weight.dequantize() for name, weight in source.weights()}


def test_a_gguf_gives_back_the_weights_of_the_checkpoint_it_was_made_from(tmp_path: Path) -> None:
    model = new_llama(attention_bias=True, head_dim=32)
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", model)))
    weights = dense_weights(source)
    expected = model.state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


@pytest.mark.parametrize("new_model", [new_qwen2, new_qwen3])
def test_qwens_rows_come_as_they_are_stored_with_their_biases_and_norms(tmp_path: Path, new_model) -> None:
    model = new_model()
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", model)))
    weights, expected = dense_weights(source), model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    config = source.config()
    assert config.architecture == type(model).__name__
    assert (config.attention_bias, config.attention_output_bias) == (new_model is new_qwen2, False)
    assert config.qk_norm == (new_model is new_qwen3)


def test_the_config_says_what_the_checkpoint_said(tmp_path: Path) -> None:
    model = new_llama(tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 50000.0}, rms_norm_eps=1e-4)
    config = resolve_model(str(write_gguf(tmp_path / "m.gguf", model))).config()
    assert config.architecture == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers) == (320, 64, 96, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 16)
    assert (config.rope.kind, config.rope.theta, config.rope.rotary_dim) == ("default", 50000.0, 16)
    assert config.rms_norm_eps == pytest.approx(1e-4)
    assert config.max_position_embeddings == 256
    assert config.tie_word_embeddings
    assert not config.attention_bias
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.dtype == "float32"


def test_quantised_q_and_k_rows_are_brought_to_the_half_split_order(tmp_path: Path) -> None:
    model = new_llama()
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", model, gguf.GGMLQuantizationType.Q8_0)))
    weights = dict(source.weights())
    for name, expected in model.state_dict().items():
        if expected.dim() == 2:
            weight = weights[name]
            assert isinstance(weight, QuantizedWeight)
            # Half a step of 8 bits: rows in another order would be off by the weights themselves.
            assert (weight.dequantize() - expected).abs().max() <= expected.abs().max() / 127


def test_the_default_model_knows_the_capital_of_france() -> None:
    source = resolve_model(None)
    config = source.config()
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                tie_word_embeddings=config.tie_word_embeddings,
            )
        )
    weights = dense_weights(source)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    rotary = model.model.rotary_emb
    rotary.inv_freq = 1.0 / config.rope.theta ** (torch.arange(0, 64, 2) / 64)
    tokenizer = source.tokenizer()
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer.encode("The capital of France is")])).logits
    assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"


def test_progress_counts_up_to_the_bytes_of_all_tensors(tmp_path: Path) -> None:
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama())))
    seen: list[tuple[int, int]] = []
    for _ in source.weights(lambda done, total: seen.append((done, total))):
        pass
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(tensor.numel() * 4 for tensor in new_llama().state_dict().values())


def test_llama3_scaling_becomes_one_divisor_for_each_frequency(tmp_path: Path) -> None:
    factors = np.array([1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0], np.float32)
    path = write_gguf(tmp_path / "m.gguf", new_llama(), edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    source = resolve_model(str(path))
    assert source.config().rope.kind == "default"
    assert source.config().rope.parameters == {"freq_factors": factors.tolist()}
    assert "rope_freqs.weight" not in dict(source.weights())


def test_yarn_scaling_is_taken_over(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    rope = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama(), edit=edit))).config().rope
    assert rope.kind == "yarn"
    assert rope.parameters["factor"] == 4.0
    assert rope.parameters["original_max_position_embeddings"] == 64
    assert rope.parameters["attention_factor"] == pytest.approx(0.1 * math.log(4) + 1)


def test_every_token_that_ends_a_turn_is_an_end_token(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        tokens = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|eot_id|>", "text", "<|end|>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3, 3, 3, 3, 1, 1])
        writer.add_token_merges([])
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(4)

    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama(), edit=edit, with_tokenizer=False)))
    # "<|end|>" is ordinary text here, not a control token.
    assert source.config().eos_token_ids == (2, 4, 3)


def test_fine_tunings_of_one_model_have_different_fingerprints(tmp_path: Path) -> None:
    first = resolve_model(str(write_gguf(tmp_path / "a.gguf", new_llama(seed=0))))
    same = resolve_model(str(write_gguf(tmp_path / "b.gguf", new_llama(seed=0))))
    other = resolve_model(str(write_gguf(tmp_path / "c.gguf", new_llama(seed=1))))
    assert first.fingerprint() == same.fingerprint() != other.fingerprint()


def test_other_architectures_are_refused_with_a_list_of_those_that_work(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="architecture 'mamba' are not supported; supported are llama"):
        resolve_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda writer: writer.add_expert_count(8), "mixtures of experts are not supported"),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "rotary scaling of kind 'longrope'"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, edit, message: str) -> None:
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama(), edit=edit)))
    with pytest.raises(ModelLoadError, match=message):
        source.config()


def test_one_part_of_a_split_model_says_how_to_join_the_parts(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-00001-of-00003.gguf", new_llama(), edit=lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(ModelLoadError, match="one of 3 parts of a model: join them"):
        resolve_model(str(path))


def test_the_weights_may_be_read_again(tmp_path: Path) -> None:
    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama())))
    first, second = dense_weights(source), dense_weights(source)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tensor_without_a_place_is_refused_by_name(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_sinks.weight", np.ones(16, np.float32))

    source = resolve_model(str(write_gguf(tmp_path / "m.gguf", new_llama(), edit=edit)))
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_sinks\.weight"):
        list(source.weights())

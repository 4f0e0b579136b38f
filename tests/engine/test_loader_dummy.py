from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import new_llama, new_qwen2, new_qwen3, save_tokenizer

from engine.loader import ModelSource, resolve_model
from kernels.weights import DenseWeight


def tensors(source: ModelSource) -> dict[str, torch.Tensor]:
    return {name: weight.data if isinstance(weight, DenseWeight) else weight for name, weight in source.weights()}


@pytest.mark.parametrize(
    ("new_model", "settings"),
    [
        (new_llama, {}),
        (new_llama, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24}),
        (new_qwen2, {}),
        (new_qwen3, {}),
    ],
)
def test_dummy_weights_have_the_names_and_shapes_of_real_ones(tmp_path: Path, new_model, settings: dict) -> None:
    model = new_model(**settings)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)  # no weights in the directory
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if settings:
        del expected["lm_head.weight"]
    assert {name: tensor.shape for name, tensor in tensors(resolve_model(str(tmp_path), load_format="dummy")).items()} == expected


def test_dummy_weights_are_small_normal_numbers_in_the_checkpoints_type_and_norms_are_one() -> None:
    source = resolve_model(None, load_format="dummy")
    weights = tensors(source)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    embedding = weights["model.embed_tokens.weight"].float()
    assert embedding.std().item() == pytest.approx(0.02, rel=0.01)
    assert abs(embedding.mean().item()) < 1e-4
    assert torch.equal(weights["model.norm.weight"], torch.ones(576, dtype=torch.bfloat16))


def test_no_two_rows_or_matrices_are_alike() -> None:
    weights = tensors(resolve_model(None, load_format="dummy"))
    embedding = weights["model.embed_tokens.weight"]
    assert len(torch.unique(embedding[:, :8].float(), dim=0)) == len(embedding)
    first, second = (weights[f"model.layers.{i}.mlp.up_proj.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_the_seed_decides_the_weights() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    first, same, other = (tensors(resolve_model(None, load_format="dummy", seed=seed))[name] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    prints = [resolve_model(None, load_format="dummy", seed=seed).fingerprint() for seed in (1, 2)]
    assert prints[0] != prints[1] != resolve_model(None).fingerprint()


def test_everything_but_the_weights_is_the_models_own(tmp_path: Path) -> None:
    model = new_llama()
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    source = resolve_model(str(tmp_path), load_format="dummy")
    assert source.tokenizer().bos_token == "<s>"
    assert source.chat_template() == "{{ messages }}"
    assert source.config() == resolve_model(str(tmp_path)).config()

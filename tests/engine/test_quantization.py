"""Checkpoints of floats that are rounded as they are loaded, and those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_settings import small_llm
from gguf import GGMLQuantizationType
from small_models import new_llama, save_tokenizer, write_gguf
from transformers import LlamaForCausalLM

from engine.errors import ConfigError, ModelLoadError
from engine.llm import LLM
from engine.quantization import conversion_to
from engine.sampling_params import SamplingParams
from kernels.cpu.plan import Plan
from kernels.cpu.structs import WEIGHT_BF16, WEIGHT_F16, WEIGHT_F32, WEIGHT_Q4, WEIGHT_Q8
from kernels.weights import DenseWeight

PROMPT = list(range(10, 30))
LARGER = {"hidden_size": 128, "intermediate_size": 192, "initializer_range": 0.2, "attention_bias": True}


def saved(model: LlamaForCausalLM, directory: Path, dtype: torch.dtype) -> str:
    model.to(dtype).save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


def forms_of(llm: LLM) -> dict[str, int]:
    """The packed form of the inner matrices and of the output layer; they are all alike in this family."""
    model = llm.engine._executor._runner._model  # type: ignore[attr-defined]
    layers = [p.packed.struct.form for layer in model.layers for p in (layer.self_attn.qkv_proj, layer.self_attn.o_proj,
                                                                      layer.mlp.gate_up_proj, layer.mlp.down_proj)]  # fmt: skip
    assert len(set(layers)) == 1
    return {"inner": layers[0], "embeddings": model.embed_tokens.packed.struct.form, "output": model.lm_head.packed.struct.form}


def greedy(llm: LLM) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids


def rounded(model: LlamaForCausalLM, quantization: str) -> LlamaForCausalLM:
    """transformers' model with the weights that the codes stand for."""
    convert = conversion_to(quantization)
    weights = {
        name: convert(name, DenseWeight(tensor)).dequantize().float() if tensor.dim() == 2 else tensor.float()
        for name, tensor in model.state_dict().items()
    }
    model.float().load_state_dict(weights)
    return model.eval()


@pytest.mark.parametrize(("quantization", "inner"), [("int8", WEIGHT_Q8), ("int4", WEIGHT_Q4)])
def test_a_float16_checkpoint_is_rounded_on_load_and_runs_as_a_plan_over_codes(tmp_path: Path, quantization: str, inner: int) -> None:
    model = new_llama(**LARGER)
    llm = small_llm(model=saved(model, tmp_path, torch.float16), quantization=quantization)
    assert forms_of(llm) == {"inner": inner, "embeddings": WEIGHT_Q8, "output": WEIGHT_Q8}
    assert isinstance(llm.engine._executor._runner._forward, Plan)  # type: ignore[attr-defined]
    generated = greedy(llm)
    with torch.inference_mode():
        logits = rounded(model, quantization)(torch.tensor([PROMPT + generated[:-1]])).logits[0, len(PROMPT) - 1 :]
    # Each token is the best one after those before it, but for what 8-bit activations do to close races.
    behind = logits.amax(-1) - logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
    assert float(behind.max()) < (0.02 if quantization == "int8" else 0.3) * float(logits.std())
    assert int((behind == 0).sum()) >= 27


@pytest.mark.parametrize(("dtype", "form"), [(torch.float32, WEIGHT_F32), (torch.float16, WEIGHT_F16), (torch.bfloat16, WEIGHT_BF16)])
def test_floats_stay_in_their_stored_type_and_give_the_tokens_of_transformers(tmp_path: Path, dtype: torch.dtype, form: int) -> None:
    model = new_llama(**LARGER)
    llm = small_llm(model=saved(model, tmp_path, dtype), quantization="none")
    assert set(forms_of(llm).values()) == {form}
    assert isinstance(llm.engine._executor._runner._forward, Plan)  # type: ignore[attr-defined]
    expected = model.float().generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert greedy(llm) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize(("dtype", "form"), [("float16", WEIGHT_F16), ("bfloat16", WEIGHT_BF16)])
def test_weights_and_kv_are_kept_in_the_dtype_asked_for_by_the_same_fast_path(tmp_path: Path, dtype: str, form: int) -> None:
    model = new_llama(**LARGER)
    llm = small_llm(model=saved(model, tmp_path, torch.float32), dtype=dtype)
    assert set(forms_of(llm).values()) == {form}
    runner = llm.engine._executor._runner  # type: ignore[attr-defined]
    assert isinstance(runner._forward, Plan)
    assert runner._cache.pool.dtype == getattr(torch, dtype)
    generated = greedy(llm)
    model.load_state_dict({name: tensor.to(getattr(torch, dtype)).float() for name, tensor in model.state_dict().items()})
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + generated[:-1]])).logits[0, len(PROMPT) - 1 :]
    behind = logits.amax(-1) - logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
    assert float(behind.max()) < 0.02 * float(logits.std())  # what the rounding of keys and values does


def test_weights_that_the_dtype_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    model = new_llama()
    model.model.layers[1].mlp.down_proj.weight.data[3, 4] = 70_000.0
    directory = saved(model, tmp_path, torch.float32)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.down_proj\.weight cannot be served .* beyond float16: use --dtype bfloat16"):
        small_llm(model=directory, dtype="float16")


def test_the_floats_of_a_gguf_are_rounded_too(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", new_llama(**LARGER), GGMLQuantizationType.F16)
    assert forms_of(small_llm(model=str(path), quantization="int4"))["inner"] == WEIGHT_Q4


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_checkpoint_of_codes_is_not_rounded_again(tmp_path: Path, quantization: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", new_llama(), GGMLQuantizationType.Q8_0)
    with pytest.raises(ModelLoadError, match="stored in 8 bits already: use --quantization auto"):
        small_llm(model=str(path), quantization=quantization)


def test_int8_keys_and_values_are_those_of_the_reference(tmp_path: Path) -> None:
    directory = saved(new_llama(**LARGER), tmp_path, torch.float32)
    ours, reference = (small_llm(model=directory, kv_cache_dtype="int8", kernels=kernels) for kernels in ("cpu", "reference"))
    assert isinstance(ours.engine._executor._runner._forward, Plan)  # type: ignore[attr-defined]
    assert greedy(ours) == greedy(reference)


def test_keys_and_values_of_a_type_that_the_kernels_do_not_have_are_refused(tmp_path: Path) -> None:
    directory = saved(new_llama(), tmp_path, torch.float32)
    with pytest.raises(ConfigError, match="kv_cache_dtype fp8 is not for the cpu kernels"):
        small_llm(model=directory, kernels="cpu", kv_cache_dtype="fp8")

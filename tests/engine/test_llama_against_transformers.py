"""The default model, and small ones of the family, against transformers in float32 on the same dequantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_settings import small_llm
from forward import Forward
from small_models import new_llama, new_mistral, new_qwen2, new_qwen3, save_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from engine.llm import LLM
from engine.loader.model_source import ModelSource
from engine.loader.resolve import resolve_model
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams
from kernels.cpu.plan import Plan

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The quick brown fox",
    "In 1969, humans first",
    "import numpy as np\n\nx = np.",
    "Q: What is 2 + 2?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are",
    "Bonjour, je m'appelle",
    "SELECT name FROM users WHERE",
    "My favourite colour is",
    "A list of prime numbers: 2, 3, 5, 7,",
    "To make a good cup of tea,",
    "<html>\n<head>\n<title>",
    "The mitochondria is",
    "If all cats are animals and Tom is a cat, then",
    "January, February, March,",
    "The meaning of life is",
]


def reference_of(source: ModelSource) -> LlamaForCausalLM:
    config = source.config()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    weights = {name: w if isinstance(w, torch.Tensor) else w.dequantize() for name, w in source.weights()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    model.load_state_dict(weights)
    return model.eval()


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    return reference_of(resolve_model(None))


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_prefill_logits_of_20_prompts_are_within_a_thousandth(reference: LlamaForCausalLM, kernels: str) -> None:
    source = resolve_model(None)
    prompts = [source.tokenizer().encode(text) for text in PROMPTS]
    ours = Forward(source, kernels).logits(prompts)
    with torch.inference_mode():
        for prompt, logits in zip(prompts, ours, strict=True):
            expected = reference(torch.tensor([prompt])).logits[0]
            assert (logits - expected).abs().max() < 1e-3


def test_greedy_tokens_are_those_of_transformers_on_at_least_19_of_20_prompts(reference: LlamaForCausalLM) -> None:
    llm = LLM(dtype="float32", quantization="none", max_model_len=256, kv_cache_memory=256 << 20)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True), use_tqdm=False)
    num_identical = 0
    with torch.inference_mode():
        for output in outputs:
            prompt, generated = output.prompt_token_ids, output.outputs[0].token_ids
            # Greedy decoding is identical when each token is the best one after those before it.
            logits = reference(torch.tensor([prompt + generated[:-1]])).logits[0, len(prompt) - 1 :]
            wrong = (logits.argmax(-1) != torch.tensor(generated)).nonzero().flatten().tolist()
            num_identical += not wrong
            if wrong:
                first = logits[wrong[0]]
                assert first.max() - first[generated[wrong[0]]] < 1e-3
    assert num_identical >= 19


@pytest.mark.parametrize(
    ("quantization", "least_of_means", "least_of_lasts"),
    [("none", 1 - 1e-6, 1 - 1e-6), ("auto", 0.999, 0.998)],
    ids=["float32", "quantised"],
)
def test_embeddings_point_where_those_of_transformers_do(
    reference: LlamaForCausalLM, quantization: str, least_of_means: float, least_of_lasts: float
) -> None:
    llm = LLM(quantization=quantization, max_model_len=256, kv_cache_memory=64 << 20)
    cosines: dict[str, list[float]] = {"mean": [], "last": []}
    for pooling, found in cosines.items():
        for output in llm.embed(PROMPTS[:5], PoolingParams(pooling=pooling), use_tqdm=False):
            with torch.inference_mode():
                states = reference.model(torch.tensor([output.prompt_token_ids])).last_hidden_state[0].double()
            expected = torch.nn.functional.normalize(states.mean(0) if pooling == "mean" else states[-1], dim=0)
            found.append(float(output.vector.astype(float) @ expected.numpy()))
    assert sum(cosines["mean"]) / 5 > least_of_means
    assert sum(cosines["last"]) / 5 > least_of_lasts


@pytest.mark.parametrize(
    "settings",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "head_dim": 32},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}},
    ],
    ids=["biases", "tied, wide heads", "gelu", "linear rope", "llama3 rope", "yarn rope"],
)
@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_small_llamas_give_the_logits_of_transformers(tmp_path: Path, settings: dict, kernels: str) -> None:
    model = new_llama(**settings)
    assert_same_logits(model, tmp_path, kernels)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_mistral_sees_only_its_sliding_window(tmp_path: Path, kernels: str) -> None:
    model = new_mistral(sliding_window=24)
    model.config._attn_implementation = "eager"
    assert_same_logits(model, tmp_path, kernels)


@pytest.mark.parametrize("new_model", [new_qwen2, new_qwen3])
@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_qwen_gives_the_logits_of_transformers(tmp_path: Path, new_model, kernels: str) -> None:
    assert_same_logits(new_model(tie_word_embeddings=True), tmp_path, kernels)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_heads_of_128_and_8_kv_heads_run_as_a_plan_with_the_tokens_of_transformers(tmp_path: Path, quantization: str) -> None:
    shape = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 512}
    model = new_qwen2(**shape, initializer_range=0.05).half()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    llm = small_llm(model=str(tmp_path), quantization=quantization)
    assert isinstance(llm.engine._executor._runner._forward, Plan)  # type: ignore[attr-defined]
    prompt = list(range(10, 30))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    generated = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    with torch.inference_mode():
        logits = model.float()(torch.tensor([prompt + generated[:-1]])).logits[0, len(prompt) - 1 :]
    behind = logits.amax(-1) - logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
    assert float(behind.max()) < (1e-3 if quantization == "none" else 0.1 * float(logits.std()))


def test_a_checkpoint_in_bfloat16_is_served_in_float32_on_the_cpu(tmp_path: Path) -> None:
    model = new_llama().to(torch.bfloat16)
    assert_same_logits(model, tmp_path, "cpu")


def assert_same_logits(model: torch.nn.Module, directory: Path, kernels: str) -> None:
    model.save_pretrained(directory)
    save_tokenizer(directory)
    torch.manual_seed(1)
    prompts = [torch.randint(3, 300, (length,)).tolist() for length in (1, 16, 17, 100)]
    ours = Forward(resolve_model(str(directory)), kernels, max_model_len=256).logits(prompts)
    with torch.inference_mode():
        for prompt, logits in zip(prompts, ours, strict=True):
            assert (logits - model.float()(torch.tensor([prompt])).logits[0]).abs().max() < 1e-4


def test_a_small_model_generates_what_transformers_generates(tmp_path: Path) -> None:
    model = new_llama(initializer_range=0.2)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    prompt = list(range(10, 30))
    llm = small_llm(model=str(tmp_path))
    generated = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 20:]
    assert generated == expected.tolist()

"""Embeddings: the hidden states of a prompt as one vector, through the scheduler that generation goes through."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_settings import small_llm
from gguf import GGMLQuantizationType
from mixed_load import mixed_requests, watched_llm
from small_models import SHAPE, new_llama, new_mistral, save_tokenizer, write_gguf
from transformers import LlamaForCausalLM, MistralModel

from engine.async_engine import AsyncLLMEngine
from engine.config import EngineConfig
from engine.errors import ConfigError, InvalidRequestError, ModelLoadError, RequestTimeoutError
from engine.llm import LLM
from engine.loader.resolve import resolve_model
from engine.messages import SequenceOutput
from engine.pooling_params import Pooling, PoolingParams
from engine.sampling_params import SamplingParams

CONTEXT = 256
ROOMY = {"num_gpu_blocks_override": 200, "max_num_batched_tokens": 512}
SETTINGS: dict[str, dict[str, Any]] = {
    "one at a time in whole prompts": {**ROOMY, "max_num_seqs": 1},
    "chunks of 16 tokens": {**ROOMY, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    "recorded by nobody": {**ROOMY, "enforce_eager": True},
    "overlapping steps": {**ROOMY, "max_num_batched_tokens": 32, "async_scheduling": True},
}


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return new_llama(initializer_range=0.2)


@pytest.fixture(scope="module")
def dense(llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dense")
    llama.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def quantised(llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("quantised") / "model.gguf", llama, GGMLQuantizationType.Q8_0)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Lengths from 1 to the whole context; many begin alike."""
    rng = np.random.default_rng(0)
    stem = rng.integers(3, 300, CONTEXT).tolist()
    lengths = [1, 2, 15, 16, 17, 33, 64, 100, 150, CONTEXT]
    return [stem[: length // 2] + rng.integers(3, 300, length - length // 2).tolist() for length in lengths]


def expected(model: torch.nn.Module, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    """By transformers: the states after the last norm, pooled and of length 1."""
    with torch.inference_mode():
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0].double()
    return torch.nn.functional.normalize(states.mean(0) if pooling == "mean" else states[-1], dim=0)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_float32_embeddings_are_those_of_transformers(
    llama: LlamaForCausalLM, dense: Path, prompts: list[list[int]], pooling: Pooling
) -> None:
    llm = small_llm(model=str(dense), max_num_batched_tokens=48)
    for prompt, output in zip(prompts, llm.embed(prompts, PoolingParams(pooling=pooling), use_tqdm=False), strict=True):
        assert output.vector.dtype == np.float32
        assert np.abs(output.vector - expected(llama, prompt, pooling).numpy()).max() < 1e-4


@pytest.fixture(scope="module")
def alone(quantised: Path, prompts: list[list[int]]) -> dict[Pooling, list[bytes]]:
    llm = small_llm(model=str(quantised), enable_prefix_caching=False, max_num_batched_tokens=512)
    vectors: dict[Pooling, list[bytes]] = {"mean": [], "last": []}
    for pooling, known in vectors.items():
        known += [llm.embed([prompt], PoolingParams(pooling=pooling), use_tqdm=False)[0].embedding for prompt in prompts]
    return vectors


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_embeddings_have_the_same_bits_alone_and_among_others(
    quantised: Path, prompts: list[list[int]], alone: dict[Pooling, list[bytes]], settings: dict[str, Any], pooling: Pooling
) -> None:
    llm = small_llm(model=str(quantised), **settings)
    for _ in range(2):  # the second time the prefix cache holds all of them
        outputs = llm.embed(prompts, PoolingParams(pooling=pooling), use_tqdm=False)
        assert [output.embedding for output in outputs] == alone[pooling]
    stats = llm.engine.stats()
    llm.engine.check()
    assert stats.blocks_referenced == stats.generation_tokens_total == 0
    assert (sum(output.num_cached_tokens for output in outputs) > 0) == (pooling == "last"), "cached tokens have no hidden states to add"
    llm.engine.shutdown()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_generation_and_embeddings_share_steps_without_touching_each_others_bits(
    quantised: Path, prompts: list[list[int]], alone: dict[Pooling, list[bytes]], pooling: Pooling
) -> None:
    requests = mixed_requests(12, SHAPE["vocab_size"], longest=120, most_tokens=40)
    settings = {"max_num_batched_tokens": 40, "max_num_seqs": 12, "max_num_partial_prefills": 4}
    undisturbed = small_llm(model=str(quantised), **settings).generate([p for p, _ in requests], [s for _, s in requests], use_tqdm=False)
    llm, watch = watched_llm(model=str(quantised), **settings)
    vectors = submit(llm, prompts, pooling)
    outputs = llm.generate([p for p, _ in requests], [s for _, s in requests], use_tqdm=False)
    assert [o.outputs for o in outputs] == [o.outputs for o in undisturbed]
    assert [vectors[f"e{i}"] for i in range(len(prompts))] == alone[pooling]
    assert watch.num_mixed_steps > 3
    assert watch.num_chunks > 10


def test_embeddings_share_a_step_with_more_log_probabilities_of_a_prompt_than_sequences_can_run(
    quantised: Path, prompts: list[list[int]], alone: dict[Pooling, list[bytes]]
) -> None:
    prompt, params = prompts[-2], SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2)
    (undisturbed,) = small_llm(model=str(quantised)).generate([prompt], params, use_tqdm=False)
    llm = small_llm(model=str(quantised), max_num_batched_tokens=256, max_num_seqs=4)
    vectors = submit(llm, prompts[:3], "mean")
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.prompt_logprobs == undisturbed.prompt_logprobs
    assert output.outputs == undisturbed.outputs
    assert [vectors[f"e{i}"] for i in range(3)] == alone["mean"][:3]


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("preemption_mode", ["swap", "recompute"])
def test_an_embedding_that_is_preempted_half_way_has_the_same_bits(
    quantised: Path, prompts: list[list[int]], alone: dict[Pooling, list[bytes]], pooling: Pooling, preemption_mode: str
) -> None:
    settings = {"max_num_batched_tokens": 5, "max_num_seqs": 3, "num_gpu_blocks_override": 18}
    llm = small_llm(model=str(quantised), preemption_mode=preemption_mode, swap_space=8 << 20, **settings)
    vectors = submit(llm, [prompts[8]], pooling, priority=1)  # the others, once they decode, take its blocks
    growing = SamplingParams(max_tokens=100, ignore_eos=True)
    llm.generate([list(range(10, 30)), list(range(40, 60))], growing, use_tqdm=False)
    stats = llm.engine.stats()
    assert stats.preemptions_total > 0
    assert stats.preemptions_swap_total == (stats.preemptions_total if (pooling, preemption_mode) == ("last", "swap") else 0)
    assert vectors["e0"] == alone[pooling][8]
    llm.engine.check()


def submit(llm: LLM, prompts: list[list[int]], pooling: Pooling, priority: int = 0) -> dict[str, bytes]:
    """Have the prompts embedded beside what `llm` does next; their vectors come into the dictionary, by e0, e1, ..."""
    vectors: dict[str, bytes] = {}
    step = llm.engine.step

    def step_and_take() -> list[SequenceOutput]:
        outputs = step()
        vectors.update({one.request_id: one.embedding for one in outputs if one.embedding is not None})
        return [one for one in outputs if one.embedding is None]

    llm.engine.step = step_and_take  # type: ignore[method-assign]
    for i, prompt in enumerate(prompts):
        llm.engine.add_request(llm._builder.build_pooled(f"e{i}", prompt, PoolingParams(pooling=pooling), priority))
    return vectors


def test_dimensions_cut_the_vector_and_bring_it_to_length_one_again(dense: Path) -> None:
    llm = small_llm(model=str(dense))
    whole = llm.embed("the hat", use_tqdm=False)[0].vector
    assert whole.shape == (64,)
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-6)
    cut = llm.embed("the hat", PoolingParams(dimensions=10), use_tqdm=False)[0].vector
    assert np.allclose(cut, whole[:10] / np.linalg.norm(whole[:10]), atol=1e-6)
    plain = llm.embed("the hat", PoolingParams(normalize=False), use_tqdm=False)[0].vector
    assert np.linalg.norm(plain) > 2
    assert np.allclose(plain / np.linalg.norm(plain), whole, atol=1e-6)
    assert np.array_equal(llm.embed("the hat", PoolingParams(dimensions=64), use_tqdm=False)[0].vector, whole)


@pytest.mark.parametrize(
    ("prompt", "dimensions", "words"),
    [
        ([], None, "the input is empty"),
        ([5] * (CONTEXT + 1), None, "maximum context length is 256 tokens. However, your input has 257"),
        ([5, 320], None, "token id 320 is not in the vocabulary"),
        ([5, -1], None, "token id -1 is not in the vocabulary"),
        ([5], 65, "dimensions must be at most 64"),
        ([5], 0, "dimensions must be at least 1"),
    ],
)
def test_what_has_no_embedding_is_refused_before_anything_runs(dense: Path, prompt: list[int], dimensions: int | None, words: str) -> None:
    llm = small_llm(model=str(dense))
    with pytest.raises(InvalidRequestError, match=words):
        llm.embed([[5], prompt], PoolingParams(dimensions=dimensions), use_tqdm=False)
    assert not llm.engine.has_work


def sentence_transformer(directory: Path, mode: str = "pooling_mode_lasttoken", extra: str | None = None) -> MistralModel:
    """A checkpoint as sentence-transformers lays it out: no output layer, and a module that says how to pool."""
    model = new_mistral(initializer_range=0.2).model
    model.save_pretrained(directory)
    save_tokenizer(directory)
    names = ["transformers.models.Transformer", "models.Pooling", "models.Normalize", *([extra] if extra else [])]
    modules = [{"idx": i, "path": "1_Pooling" if i == 1 else "", "type": f"sentence_transformers.{name}"} for i, name in enumerate(names)]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False, mode: True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    return model


@pytest.mark.parametrize(("mode", "pooling"), [("pooling_mode_lasttoken", "last"), ("pooling_mode_mean_tokens", "mean")])
def test_a_checkpoint_of_sentence_transformers_is_pooled_as_it_says(
    tmp_path: Path, prompts: list[list[int]], mode: str, pooling: Pooling
) -> None:
    model = sentence_transformer(tmp_path, mode)
    assert resolve_model(str(tmp_path)).config().pooling == pooling
    for prompt, output in zip(prompts, small_llm(model=str(tmp_path)).embed(prompts, use_tqdm=False), strict=True):
        assert np.abs(output.vector - expected(model, prompt, pooling).numpy()).max() < 1e-4


def test_a_gguf_is_pooled_as_it_says(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    for kind, pooling in ((0, None), (1, "mean"), (3, "last")):
        path = write_gguf(
            tmp_path / f"{kind}.gguf", llama, GGMLQuantizationType.F32, lambda w, kind=kind: w.add_uint32("llama.pooling_type", kind)
        )
        assert resolve_model(str(path)).config().pooling == pooling
    path = write_gguf(tmp_path / "2.gguf", llama, GGMLQuantizationType.F32, lambda w: w.add_uint32("llama.pooling_type", 2))
    with pytest.raises(ModelLoadError, match="pooling of kind 2"):
        resolve_model(str(path)).config()


def test_embeddings_that_would_be_wrong_are_no_model(tmp_path: Path) -> None:
    sentence_transformer(tmp_path, "pooling_mode_cls_token")
    with pytest.raises(ModelLoadError, match="pooling by pooling_mode_cls_token is not supported"):
        resolve_model(str(tmp_path)).config()
    sentence_transformer(tmp_path, extra="models.Dense")
    with pytest.raises(ModelLoadError, match="module of type Dense"):
        resolve_model(str(tmp_path)).config()
    for damage in (
        '{"not": "a list"}',
        "[1]",
        '[{"type": "x.Pooling", "path": "../elsewhere"}]',
        "[",
        '[{"type": "x.Pooling", "path": ""}]',
    ):
        (tmp_path / "modules.json").write_text(damage)
        with pytest.raises(ModelLoadError, match=r"modules\.json|config\.json"):
            resolve_model(str(tmp_path)).config()


def test_the_setting_overrides_the_model(tmp_path: Path) -> None:
    sentence_transformer(tmp_path)
    vectors = [
        small_llm(model=str(tmp_path), pooling=kind).embed([[5, 6, 7]], use_tqdm=False)[0].embedding for kind in ("auto", "last", "mean")
    ]
    assert vectors[0] == vectors[1] != vectors[2]
    with pytest.raises(ConfigError, match="pooling must be one of auto, mean, last"):
        EngineConfig(pooling="cls")  # type: ignore[arg-type]


async def test_embeddings_survive_the_death_of_the_engine_and_end_when_nobody_wants_them() -> None:
    settings: dict[str, Any] = {"max_model_len": 512, "num_gpu_blocks_override": 256, "max_num_seqs": 8, "max_num_batched_tokens": 32}
    engine = AsyncLLMEngine(EngineConfig(**settings))
    await engine.start()
    try:
        prompt = engine.tokenizer.encode("word " * 300)
        (expected,) = [output.embedding async for output in engine.embed(prompt, PoolingParams(), "undisturbed")]
        streams = [engine.embed(prompt, PoolingParams(), f"s{i}") for i in range(6)]
        text = engine.generate([5, 6], SamplingParams(max_tokens=60, ignore_eos=True), "text")
        while not (engine.stats.num_running and engine.stats.num_waiting):
            await asyncio.sleep(0.001)
        assert engine._process.pid is not None
        os.kill(engine._process.pid, signal.SIGKILL)
        assert [[output.embedding async for output in stream] for stream in streams] == [[expected]] * 6
        assert sum([len(output.outputs[0].token_ids) async for output in text]) == 60
        assert engine.num_restarts == 1
        left = [engine.embed(prompt, PoolingParams(), f"left{i}") for i in range(6)]
        late = engine.embed(prompt, PoolingParams(), "late", timeout=0.001)
        for stream in left:
            stream.abort()
        with pytest.raises(RequestTimeoutError):
            await anext(late)
        with pytest.raises(InvalidRequestError, match="dimensions must be at most 576"):
            engine.embed(prompt, PoolingParams(dimensions=1000), "wide")
        await engine.check()
        await engine.check()
        assert engine.num_unfinished == engine.stats.num_running == engine.stats.num_waiting == engine.stats.blocks_referenced == 0
    finally:
        await engine.shutdown()


def test_texts_and_token_ids_give_the_same_vector(dense: Path) -> None:
    llm: LLM = small_llm(model=str(dense))
    texts = ["the hat", "a hat"]
    by_text = llm.embed(texts, use_tqdm=False)
    assert [output.prompt for output in by_text] == texts
    by_ids = llm.embed([llm.tokenizer.encode(text) for text in texts], use_tqdm=False)
    assert [output.embedding for output in by_text] == [output.embedding for output in by_ids]

"""Tokens do not depend on the load: requests get the same tokens and log probabilities, to the bit, alone and in any company.

What a run claims it proves: its steps are watched for batches of prompts and decodes at once, chunks, prefix hits, forks and preemptions.
docs/determinism.md says what is promised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from mixed_load import Request, Result, Watch, differing, mixed_requests, results_alone, results_together, shuffle_free_blocks, watched_llm
from small_models import SHAPE, new_llama, save_tokenizer, write_gguf
from triton.runtime import interpreter

from engine.llm import LLM
from engine.sampling_params import SamplingParams

CONTEXT = 512
LARGE, SMALL = 400, CONTEXT // 16 + 2  # blocks of 16 tokens; the small pool holds one sequence of the whole context, and a little more
BUDGETS = {16: 8, 64: 12, 512: 24}  # max_num_batched_tokens and max_num_seqs
PREEMPTION: dict[str, dict[str, Any]] = {
    "never": {"num_gpu_blocks_override": LARGE},
    "recompute": {"num_gpu_blocks_override": SMALL},
    "swap": {"num_gpu_blocks_override": SMALL, "preemption_mode": "swap", "swap_space": 64 << 20},
}
SHAPE_HERE = {"max_position_embeddings": CONTEXT, "initializer_range": 0.2}


def settings_for(budget: int, preemption: str = "never", caching: bool = True, **others: Any) -> dict[str, Any]:
    return {
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": budget,
        "max_num_seqs": BUDGETS[budget],
        "enable_prefix_caching": caching,
        **PREEMPTION[preemption],
        **others,
    }


def assert_it_happened(llm: LLM, watch: Watch, budget: int, preemption: str, caching: bool) -> None:
    """The run was what its name says."""
    stats = llm.engine.stats()
    assert watch.num_mixed_steps > 3
    assert budget == 512 or watch.num_chunks > 20, "the prompts were not cut"
    assert watch.num_block_copies > 0, "no sample was forked"
    assert (stats.prefix_cache_hits_total > 0) == caching
    assert (stats.preemptions_total > 3) == (preemption != "never")
    assert (stats.preemptions_swap_total > 3) == (watch.num_swap_ins > 0) == (preemption == "swap")
    llm.engine.check()
    assert stats.blocks_referenced == 0


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers with weights of Q8_0, as the default model's."""
    path = tmp_path_factory.mktemp("quantised") / "model.gguf"
    return str(write_gguf(path, new_llama(**SHAPE_HERE), GGMLQuantizationType.Q8_0))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("dense")
    new_llama(**SHAPE_HERE).save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return mixed_requests(32, SHAPE["vocab_size"])


@pytest.fixture(scope="module")
def alone(quantised: str, requests: list[Request]) -> list[Result]:
    """Each request by itself, its prompt in one step, nothing cached."""
    llm, watch = watched_llm(model=quantised, **settings_for(512, caching=False))
    results = results_alone(llm, requests)
    assert watch.num_chunks == 0
    return results


@pytest.mark.parametrize("preemption", list(PREEMPTION))
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", list(BUDGETS))
def test_requests_get_the_same_bits_alone_and_all_at_once(
    quantised: str, requests: list[Request], alone: list[Result], budget: int, caching: bool, preemption: str
) -> None:
    llm, watch = watched_llm(model=quantised, **settings_for(budget, preemption, caching))
    assert differing(results_together(llm, requests), alone) == []
    assert_it_happened(llm, watch, budget, preemption, caching)


@pytest.mark.parametrize("budget", [16, 512])
def test_dense_weights_give_the_same_bits_too(dense: str, requests: list[Request], budget: int) -> None:
    expected = results_alone(watched_llm(model=dense, **settings_for(512, caching=False))[0], requests)
    llm, watch = watched_llm(model=dense, **settings_for(budget, "swap"))
    assert differing(results_together(llm, requests), expected) == []
    assert_it_happened(llm, watch, budget, "swap", caching=True)


@pytest.mark.parametrize("budget", [16, 512])
def test_int8_keys_and_values_give_the_same_bits_too(quantised: str, requests: list[Request], budget: int) -> None:
    expected = results_alone(watched_llm(model=quantised, kv_cache_dtype="int8", **settings_for(512, caching=False))[0], requests)
    llm, watch = watched_llm(model=quantised, kv_cache_dtype="int8", **settings_for(budget, "swap"))
    assert differing(results_together(llm, requests), expected) == []
    assert_it_happened(llm, watch, budget, "swap", caching=True)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_does_not_matter(quantised: str, requests: list[Request], alone: list[Result], num_threads: int) -> None:
    llm, _ = watched_llm(model=quantised, **settings_for(64, num_threads=num_threads))
    assert differing(results_together(llm, requests), alone) == []


@pytest.mark.parametrize(("num_blocks", "block_size"), [(SMALL, 16), (97, 16), (1000, 16), (90, 8), (40, 32), (1000, 1)])
def test_neither_the_size_of_pool_and_blocks_nor_which_are_handed_out_nor_what_is_in_them_matters(
    quantised: str, requests: list[Request], alone: list[Result], num_blocks: int, block_size: int
) -> None:
    llm, _ = watched_llm(model=quantised, **settings_for(64, num_gpu_blocks_override=num_blocks, block_size=block_size))
    llm.engine._executor._runner._cache.pool.fill_(float("nan"))  # type: ignore[attr-defined]
    shuffle_free_blocks(llm, seed=num_blocks)
    assert differing(results_together(llm, requests), alone) == []


def test_recorded_and_eager_passes_and_overlapping_steps_give_the_same_bits(
    quantised: str, requests: list[Request], alone: list[Result]
) -> None:
    for others in ({"enforce_eager": True}, {"async_scheduling": True}):
        llm, _ = watched_llm(model=quantised, **settings_for(64, "swap", **others))
        assert differing(results_together(llm, requests), alone) == []
        llm.engine.shutdown()


def triton_requests() -> list[Request]:
    """Few and short, as the interpreter takes a good part of a second for a step."""
    shared = list(range(10, 45))
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "max_tokens": 15, "logprobs": 2},
        {"temperature": 1.0, "max_tokens": 16, "logprobs": 0, "top_k": 30, "seed": 5, "frequency_penalty": 0.5},
        {"temperature": 0.9, "max_tokens": 6, "top_p": 0.9, "seed": 1},
    ]
    prompts = [[*shared, 60], list(range(100, 119)), [*shared, 61]]
    return [(prompt, SamplingParams(ignore_eos=True, **kind)) for prompt, kind in zip(prompts, kinds, strict=True)]


@pytest.fixture
def tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter multiply as tensor cores do, where a row's sums do not depend on its place in the tile, as BLAS's do."""

    def create_dot(_builder: Any, a: Any, b: Any, d: Any, *_others: Any) -> Any:
        return interpreter.TensorHandle(np.einsum("ik,kj->ij", a.data, b.data, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("tensor_cores")
def test_the_triton_kernels_give_the_same_bits_with_deterministic(dense: str) -> None:
    settings: dict[str, Any] = {"model": dense, "kernels": "triton", "deterministic": True, "max_model_len": 64, "max_num_seqs": 3}
    expected = results_alone(watched_llm(**settings, enable_prefix_caching=False)[0], triton_requests())
    llm, watch = watched_llm(**settings, max_num_batched_tokens=16, num_gpu_blocks_override=5)
    assert differing(results_together(llm, triton_requests()), expected) == []
    stats = llm.engine.stats()
    assert watch.num_mixed_steps > 0
    assert watch.num_chunks > 2
    assert stats.preemptions_total > 0
    assert stats.prefix_cache_hits_total > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_requests_get_the_same_bits_alone_and_all_at_once(quantised: str) -> None:
    requests = mixed_requests(200, SHAPE["vocab_size"], seed=1)
    expected = results_alone(watched_llm(model=quantised, **settings_for(512, caching=False))[0], requests)
    for budget in BUDGETS:
        for caching in (True, False):
            for preemption in PREEMPTION:
                llm, watch = watched_llm(model=quantised, **settings_for(budget, preemption, caching))
                assert differing(results_together(llm, requests), expected) == [], (budget, caching, preemption)
                assert_it_happened(llm, watch, budget, preemption, caching)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_requests_to_the_default_model_get_the_same_bits_alone_and_all_at_once() -> None:
    requests = mixed_requests(200, vocab_size=49_000, most_tokens=60, seed=2)
    expected = results_alone(watched_llm(**settings_for(512, caching=False))[0], requests)
    for budget, preemption, caching in [(16, "swap", True), (64, "recompute", True), (64, "swap", False), (512, "never", True)]:
        llm, watch = watched_llm(**settings_for(budget, preemption, caching))
        assert differing(results_together(llm, requests), expected) == [], (budget, caching, preemption)
        assert_it_happened(llm, watch, budget, preemption, caching)

"""What a step costs must not grow with what it need not touch."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_settings import small_llm
from small_models import new_llama, save_tokenizer

from engine.llm import LLM
from engine.sampling_params import SamplingParams


class CountingOps:
    """Passes every call of an operation on, and counts it."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return value(*args)

        return counted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("two-layers")
    new_llama().save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


@pytest.mark.parametrize("kernels", ["cpu", "triton"])
def test_the_number_of_kernel_calls_in_a_step_does_not_grow_with_the_sequences(model: str, kernels: str) -> None:
    calls = []
    for num_seqs in (1, 12):
        llm = small_llm(model=model, kernels=kernels, enforce_eager=True)
        runner = llm.engine._executor._runner
        runner._ops = counting = CountingOps(runner._ops)
        llm.generate([[7, 8, 9 + i] for i in range(num_seqs)], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
        assert llm.engine.stats().steps_total == 2
        calls.append(counting.calls)
    assert calls[0] == calls[1]
    assert calls[0]["paged_attention"] == 2 * 2  # layers times steps


def peak_of_a_decode_step(llm: LLM, context: int, num_seqs: int) -> int:
    """Bytes that the forward pass of one decode step allocates at most, with `context` tokens behind each sequence."""
    peaks: list[int] = []
    runner = llm.engine._executor._runner
    forward = runner._forward

    def measured(batch: Any) -> torch.Tensor:
        if batch.max_query_len > 1:
            return forward(batch)
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            tracemalloc.start()
            logits = forward(batch)
            python_peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        allocated = sum(event.cpu_memory_usage for event in profile.events() if event.cpu_memory_usage > 0)
        peaks.append(allocated + python_peak)
        return logits

    runner._forward = measured
    prompts = [[3 + (i * 7 + j) % 300 for j in range(context)] for i in range(num_seqs)]
    llm.generate(prompts, SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    return max(peaks)


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["plan", "eager"])
def test_attentions_temporary_memory_does_not_grow_with_the_context(model: str, enforce_eager: bool) -> None:
    short, long = (
        peak_of_a_decode_step(small_llm(model=model, kernels="cpu", enforce_eager=enforce_eager), context, num_seqs=4)
        for context in (8, 250)
    )
    assert long < short + 4096


def test_the_plan_is_one_native_call_a_step(model: str, tmp_path: Path) -> None:
    llm = small_llm(model=model, kernels="cpu")
    runner = llm.engine._executor._runner
    runner._ops = counting = CountingOps(runner._ops)
    llm.generate([[7, 8, 9]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert not counting.calls

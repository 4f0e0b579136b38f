from __future__ import annotations

import pytest

from engine.preemption import LONG_SEQUENCE, Preemption
from engine.step import StepInput, StepOutput


def step(query_lens: list[int], samples: bool = True) -> StepInput:
    slots = list(range(len(query_lens)))
    return StepInput([], [], [], slots, [0] * len(slots), query_lens, [samples] * len(slots))


def output(compute_seconds: float = 0.0, swap_seconds: float = 0.0, num_timed_swaps: int = 0) -> StepOutput:
    return StepOutput(
        token_ids=[],
        logprobs=[],
        prompt_logprobs=[],
        compute_seconds=compute_seconds,
        swap_seconds=swap_seconds,
        num_timed_swaps=num_timed_swaps,
    )


@pytest.mark.parametrize(("mode", "expected"), [("swap", True), ("recompute", False)])
def test_a_forced_mode_is_the_answer_whatever_is_measured(mode: str, expected: bool) -> None:
    choice = Preemption(mode)  # type: ignore[arg-type]
    choice.measure(step([100]), output(1.0, 1.0, 1))
    assert choice.prefers_swap(1) == choice.prefers_swap(10_000) == expected


def test_before_any_measurement_long_sequences_are_swapped_and_short_ones_computed_again() -> None:
    choice = Preemption()
    assert not choice.prefers_swap(LONG_SEQUENCE)
    assert choice.prefers_swap(LONG_SEQUENCE + 1)
    choice.measure(step([100]), output(compute_seconds=1.0))
    assert choice.prefers_swap(LONG_SEQUENCE + 1), "one speed alone decides nothing"


@pytest.mark.parametrize(("seconds_per_block", "expected"), [(0.07, True), (0.09, False)])
def test_what_costs_less_by_the_measured_speeds_is_chosen_both_ways_of_the_copy_counted(seconds_per_block: float, expected: bool) -> None:
    choice = Preemption(block_size=16)
    choice.measure(step([100]), output(1.0, 10 * seconds_per_block, 10))  # 0.01 s a token, 0.16 s a block
    assert choice.prefers_swap(160) == expected


def test_a_block_that_is_begun_is_copied_whole() -> None:
    choice = Preemption(block_size=16)
    choice.measure(step([100]), output(1.0, 0.07, 1))
    assert choice.prefers_swap(16)
    assert not choice.prefers_swap(17 - 4)


def test_only_steps_of_prompts_tell_how_fast_prompts_are_computed() -> None:
    choice = Preemption()
    for query_lens in ([1] * 50, [15], [1] * 40 + [100]):
        choice.measure(step(query_lens), output(compute_seconds=1.0))
        assert choice.seconds_per_token is None
    choice.measure(step([1] * 20 + [80]), output(compute_seconds=1.0))
    assert choice.seconds_per_token == pytest.approx(0.01)


def test_steps_whose_end_nobody_waited_for_count_with_the_next_that_samples() -> None:
    choice = Preemption()
    choice.measure(step([100], samples=False), output(compute_seconds=0.001))
    assert choice.seconds_per_token is None
    choice.measure(step([100]), output(compute_seconds=1.999))
    assert choice.seconds_per_token == pytest.approx(0.01)


def test_the_speeds_follow_what_is_measured_later() -> None:
    choice = Preemption()
    choice.measure(step([100]), output(1.0, 1.0, 10))
    for _ in range(40):
        choice.measure(step([100]), output(2.0, 4.0, 10))
    assert choice.seconds_per_token == pytest.approx(0.02, rel=1e-3)
    assert choice.seconds_per_block == pytest.approx(0.4, rel=1e-3)

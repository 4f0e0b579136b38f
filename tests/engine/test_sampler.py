from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.outputs import TokenLogprobs
from engine.sampler import Sampled, Sampler, token_logprobs
from engine.sampling_params import SamplingParams
from engine.step import NewSequence
from kernels.ops import Ops, load_ops
from kernels.random import uniform

EOS = 2
OPS: Ops


@pytest.fixture(scope="module", autouse=True, params=["reference", "cpu"])
def _ops(request: pytest.FixtureRequest) -> None:
    """Every test of this file runs on both sets."""
    global OPS
    OPS = load_ops(request.param, torch.device("cpu"), torch.float32, num_threads=2)


def sampler_of(*rows: tuple[SamplingParams, int, int], num_prompt_tokens: int = 0) -> Sampler:
    """Each row is (params, seed, sample index) and gets the slot of its place."""
    sampler = Sampler(OPS, np.zeros((len(rows), 1), np.int32), [EOS])
    for slot, (params, seed, sample_index) in enumerate(rows):
        sampler.admit(
            NewSequence(
                slot=slot,
                token_ids=[],
                num_prompt_tokens=num_prompt_tokens,
                params=params,
                seed=seed,
                sample_index=sample_index,
                block_ids=[],
                prompt_logprobs=None,
            )
        )
    return sampler


def sample(sampler: Sampler, logits: torch.Tensor, slots: list[int], positions: list[int]) -> Sampled:
    return sampler.sample(logits.clone(), np.array(slots, np.int64), np.array(positions, np.int64))


def sample_one(params: SamplingParams, row: list[float], num_draws: int = 1, seed: int = 0) -> list[int]:
    """Draws at positions 0, 1, 2, ... from one row of logits."""
    sampler = sampler_of((params, seed, 0))
    logits = torch.tensor(row).repeat(num_draws, 1)
    return sample(sampler, logits, [0] * num_draws, list(range(num_draws))).token_ids.tolist()


def kept_by(params: SamplingParams, row: list[float]) -> np.ndarray:
    """The probabilities [vocab_size] that the stages leave, by their definitions: zero for what they remove, not normalised."""
    logits = np.array(row, np.float64) / params.temperature
    weights = np.exp(logits - logits.max())
    weights[weights < params.min_p * weights.max() * (1 - 1e-6)] = 0.0
    if 0 < params.top_k < len(weights):
        weights[weights < sorted(weights, reverse=True)[params.top_k - 1] * (1 - 1e-9)] = 0.0
    if params.top_p < 1.0:
        probabilities = weights / weights.sum()
        total, threshold = 0.0, math.inf
        for probability in sorted(probabilities, reverse=True):
            if total >= params.top_p - 1e-6:
                break
            total, threshold = total + probability, probability
        weights[probabilities < threshold * (1 - 1e-6)] = 0.0
    return weights


def is_right_draw(token_id: int, weights: np.ndarray, number: float) -> bool:
    """The number falls in the token's share of the cumulative distribution, give or take rounding."""
    ends = np.cumsum(weights) / weights.sum()
    start = ends[token_id - 1] if token_id else 0.0
    return bool(weights[token_id] > 0 and start - 1e-5 <= number <= ends[token_id] + 1e-5)


grids = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=1, max_size=16)  # coarse, so that ties abound
# Sums of few exponentials of halves do not come near these by chance.
all_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 100]),
    top_p=st.sampled_from([1.0, 0.987654, 0.7123, 0.3217, 0.0102]),
    min_p=st.sampled_from([0.0, 0.0123, 0.2345, 0.81, 1.0]),
)


@given(grids, all_params, st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=80, deadline=None)
def test_a_draw_is_the_token_in_whose_share_of_what_the_stages_leave_the_number_falls(
    row: list[float], params: SamplingParams, seed: int
) -> None:
    weights = kept_by(params, row)
    drawn = sample_one(params, row, num_draws=20, seed=seed)
    seeds = np.full(20, seed & (2**64 - 1), np.uint64)
    numbers = uniform(seeds, np.zeros(20, np.uint64), np.arange(20, dtype=np.uint64))
    for token_id, number in zip(drawn, numbers, strict=True):
        assert is_right_draw(token_id, weights, number)


def test_greedy_takes_the_most_probable_token_and_of_equals_the_first() -> None:
    greedy = SamplingParams(temperature=0)
    assert sample_one(greedy, [0.0, 3.0, 1.0]) == [1]
    assert sample_one(greedy, [0.0, 3.0, 1.0, 3.0]) == [1]
    assert sample_one(SamplingParams(temperature=1e-6), [0.0, 3.0, 1.0]) == [1]


def test_tokens_as_probable_as_the_k_th_are_all_kept() -> None:
    drawn = sample_one(SamplingParams(top_k=2), [5.0, 4.0, 4.0, 4.0, 0.0], num_draws=500)
    assert set(drawn) == {0, 1, 2, 3}


def test_tokens_as_probable_as_the_last_of_the_nucleus_are_all_kept() -> None:
    drawn = sample_one(SamplingParams(top_p=0.3), [1.0, 1.0, 1.0, 1.0, -9.0], num_draws=500)
    assert set(drawn) == {0, 1, 2, 3}


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.999])
def test_a_nucleus_larger_than_the_guess_is_found_all_the_same(top_p: float) -> None:
    # Nearly flat over 2,000 tokens: the nucleus is far beyond the largest 256.
    row = torch.linspace(0.0, 0.5, 2000).tolist()
    weights = kept_by(SamplingParams(top_p=top_p), row)
    assert (weights > 0).sum() > 256
    drawn = sample_one(SamplingParams(top_p=top_p), row, num_draws=3000)
    assert min(drawn) >= np.flatnonzero(weights)[0] - 1
    assert min(drawn) < np.flatnonzero(weights)[0] + 50


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_draws_follow_the_softmax_of_the_tempered_logits(temperature: float) -> None:
    row = [0.0, 0.5, 1.0, -1.0, 2.0, 1.5, -0.5, 0.25, 0.75, 1.25]
    num_draws = 20_000
    drawn = sample_one(SamplingParams(temperature=temperature), row, num_draws)
    expected = torch.tensor(row, dtype=torch.float64).div(temperature).softmax(-1).numpy() * num_draws
    counts = np.bincount(drawn, minlength=len(row))
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 9 degrees of freedom, p = 0.001


def test_the_samples_of_one_request_differ_and_a_fixed_seed_repeats_them() -> None:
    logits = torch.zeros(1, 50).repeat(40, 1)

    def draw(seed: int, sample_index: int) -> list[int]:
        return sample(sampler_of((SamplingParams(), seed, sample_index)), logits, [0] * 40, list(range(40))).token_ids.tolist()

    assert draw(7, 0) == draw(7, 0)
    assert len({tuple(draw(seed, index)) for seed in (7, 8, -1) for index in range(4)}) == 12


PARAMS = [
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(temperature=0.8, logprobs=0),
    SamplingParams(top_k=5, logprobs=20),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.999, temperature=3.0, logprobs=2),
    SamplingParams(min_p=0.1, top_k=40, top_p=0.8, temperature=1.3, logprobs=1),
    SamplingParams(min_tokens=10, logprobs=5),
    SamplingParams(top_p=0.5, top_k=2),
]


@given(order=st.permutations(range(16)), size=st.integers(1, 16), coarse=st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_rows_token_and_log_probabilities_have_the_same_bits_alone_and_in_any_batch(order: list[int], size: int, coarse: bool) -> None:
    logits = torch.randn(16, 997, generator=torch.Generator().manual_seed(3)) * 2
    if coarse:
        logits = logits.round()  # equals everywhere, at the edge of top_k and among the top log probabilities too
    sampler = sampler_of(*((PARAMS[i % len(PARAMS)], 100 + i, i % 3) for i in range(16)))
    positions = [3 * i for i in range(16)]
    rows = order[:size]
    batch = sample(sampler, logits[rows], rows, [positions[i] for i in rows])
    for place, row in enumerate(rows):
        alone = sample(sampler, logits[row : row + 1], [row], [positions[row]])
        assert batch.token_ids[place] == alone.token_ids[0]
        assert batch.logprobs[place] == alone.logprobs[0]


def test_the_slot_of_a_sequence_changes_nothing() -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(1))
    row = (SamplingParams(top_p=0.9, logprobs=4), 5, 1)
    first = sample(sampler_of(row), logits, [0], [9])
    other = sample(sampler_of((SamplingParams(top_k=1), 1, 0), (SamplingParams(), 2, 0), row), logits, [2], [9])
    assert first.token_ids.tolist() == other.token_ids.tolist()
    assert first.logprobs == other.logprobs


def test_a_slot_forgets_the_settings_of_the_sequence_before() -> None:
    sampler = sampler_of((SamplingParams(top_k=1, min_tokens=50, min_p=1.0, top_p=0.1, logprobs=5), 0, 0))
    sampler.admit(
        NewSequence(
            slot=0, token_ids=[], num_prompt_tokens=0, params=SamplingParams(), seed=1, sample_index=0, block_ids=[], prompt_logprobs=None
        )
    )
    result = sample(sampler, torch.zeros(200, 4), [0] * 200, list(range(200)))
    assert set(result.token_ids.tolist()) == {0, 1, 2, 3}
    assert result.logprobs == [None] * 200


# -- min_tokens


def test_stop_tokens_cannot_be_drawn_before_min_tokens_others_are_and_can_be_after() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(4,))
    sampler = sampler_of((params, 0, 0), num_prompt_tokens=10)
    logits = torch.tensor([[0.0, 1.0, 9.0, 2.0, 8.0]]).repeat(5, 1)  # EOS, then the stop token, are the most probable
    assert sample(sampler, logits, [0] * 5, [10, 11, 12, 13, 14]).token_ids.tolist() == [3, 3, 3, EOS, EOS]


def test_an_ignored_eos_may_be_drawn_at_any_time() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, ignore_eos=True)
    assert sample_one(params, [0.0, 1.0, 9.0, 2.0]) == [EOS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_is_left_has_an_error_and_its_neighbours_are_drawn_as_ever(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=3, stop_token_ids=(0, 1), logprobs=1)
    other = SamplingParams(top_p=0.9, logprobs=1)
    sampler = sampler_of((other, 1, 0), (params, 2, 0), (other, 3, 0))
    logits = torch.tensor([[0.0, 1.0, 0.5]]).repeat(3, 1)
    together = sample(sampler, logits, [0, 1, 2], [0, 0, 0])
    assert list(together.errors) == [1]
    assert "exclude them all" in together.errors[1]
    assert together.logprobs[1] is None
    for row in (0, 2):
        alone = sample(sampler, logits[:1], [row], [0])
        assert (alone.token_ids[0], alone.logprobs[0], alone.errors) == (together.token_ids[row], together.logprobs[row], {})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error_of_their_row(value: float) -> None:
    sampler = sampler_of((SamplingParams(), 1, 0), (SamplingParams(temperature=0), 1, 0))
    logits = torch.tensor([[0.0, 1.0, value], [0.0, 1.0, value], [0.0, 1.0, 0.5]])
    assert list(sample(sampler, logits, [0, 1, 1], [0, 0, 0]).errors) == [0, 1]


# -- log probabilities


def approx(value: float) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


def entry(result: Sampled, row: int = 0) -> TokenLogprobs:
    found = result.logprobs[row]
    assert found is not None
    return found


def test_log_probabilities_are_those_of_the_models_own_distribution() -> None:
    row = torch.tensor([[0.5, 3.0, 1.0, -2.0, 2.0]])
    params = SamplingParams(temperature=0.2, top_k=1, min_tokens=5, stop_token_ids=(1,), logprobs=3)  # the best token is masked
    result = sample(sampler_of((params, 0, 0)), row, [0], [0])
    own = [approx(value) for value in row[0].log_softmax(-1).tolist()]
    assert result.token_ids.tolist() == [4]
    assert (entry(result).chosen.token_id, entry(result).chosen.logprob, entry(result).chosen.rank) == (4, own[4], 2)
    assert [(e.token_id, e.logprob, e.rank) for e in entry(result).top] == [(1, own[1], 1), (4, own[4], 2), (2, own[2], 3)]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 20), st.integers(0, 20), st.data())
@settings(max_examples=80, deadline=None)
def test_top_entries_are_the_largest_and_of_equals_the_smaller_id_comes_first(
    row: list[int], k: int, other_k: int, data: st.DataObject
) -> None:
    logits = torch.tensor([row, row[::-1]], dtype=torch.float32)
    token_id = data.draw(st.integers(0, len(row) - 1))
    found = token_logprobs(OPS, logits, np.array([token_id, 0]), np.array([k, other_k]))[0]
    values = [approx(value) for value in logits[0].log_softmax(-1).tolist()]

    def rank(token_id: int) -> int:
        return 1 + sum(logit > row[token_id] for logit in row)

    best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    assert [(e.token_id, e.logprob, e.rank) for e in found.top] == [(i, values[i], rank(i)) for i in best]
    assert (found.chosen.token_id, found.chosen.logprob, found.chosen.rank) == (token_id, values[token_id], rank(token_id))


# -- extremes


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_extreme_temperatures_and_logits_draw_a_token_that_exists(temperature: float, scale: float) -> None:
    row = (torch.randn(300, generator=torch.Generator().manual_seed(0)) * scale).tolist()
    params = SamplingParams(temperature=temperature, top_p=0.95, top_k=50, min_p=0.01)
    drawn = sample_one(params, row, num_draws=50)
    assert all(0 <= token_id < 300 for token_id in drawn)
    if scale / temperature > 1e4:
        assert set(drawn) == {int(np.argmax(row))}


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(top_p=0.01), SamplingParams(top_k=1), SamplingParams(min_p=1.0), SamplingParams(top_p=0.9)]
)
def test_a_token_without_probability_is_never_drawn(params: SamplingParams) -> None:
    row = [-math.inf, -math.inf, 1.0, -math.inf]
    assert set(sample_one(params, row, num_draws=300)) == {2}


def test_first_and_last_token_can_be_drawn() -> None:
    assert set(sample_one(SamplingParams(), [0.0, -math.inf, 0.0], num_draws=100)) == {0, 2}


def test_logits_of_half_precision_are_drawn_from_as_any() -> None:
    sampler = sampler_of((SamplingParams(temperature=0.5, top_p=0.9), 0, 0))
    result = sample(sampler, torch.tensor([[0.0, 8.0, 1.0]], dtype=torch.bfloat16), [0], [0])
    assert result.token_ids.tolist() == [1]


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_of_a_real_vocabulary_has_the_same_bits_alone_and_in_a_batch_on_any_number_of_threads(num_threads: int) -> None:
    logits = torch.randn(8, 49_153, generator=torch.Generator().manual_seed(3)) * 3
    sampler = sampler_of(*((PARAMS[i], 100 + i, 0) for i in range(8)))
    together = sample(sampler, logits, list(range(8)), list(range(8)))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for row in range(8):
            alone = sample(sampler, logits[row : row + 1], [row], [row])
            assert (together.token_ids[row], together.logprobs[row]) == (alone.token_ids[0], alone.logprobs[0])
    finally:
        torch.set_num_threads(before)

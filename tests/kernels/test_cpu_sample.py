"""The CPU kernel that draws tokens, against the reference; tests/engine/test_sampler.py has the definitions that both must meet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from cpu_cases import REFERENCE, cpu_ops
from sample_cases import make_logits, make_odd_logits, make_settings, select


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 8, 9, 255, 257, 1000, 4099, 49_152])
def test_it_draws_what_the_reference_draws(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    num_rows = 96 if vocab_size > 10_000 else 400
    logits, settings = make_logits(num_rows, vocab_size, random), make_settings(num_rows, random)
    before = logits.clone()
    drawn, expected = cpu_ops().sample(logits, settings), REFERENCE.sample(logits, settings)
    assert torch.equal(logits, before)
    # The exponentials of two libraries may differ in the last bit, and a draw may fall between.
    assert (drawn != expected).sum() <= 1
    greedy = settings.temperature == 0
    assert (drawn[greedy] == expected[greedy]).all()


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 300, 5000, 40_000])
def test_it_draws_what_the_reference_draws_from_odd_logits(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    num_rows = 44 if vocab_size > 10_000 else 330
    logits, settings = make_odd_logits(num_rows, vocab_size, random), make_settings(num_rows, random)
    assert (cpu_ops().sample(logits, settings) != REFERENCE.sample(logits, settings)).sum() <= 1


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_rows_token_is_its_own_on_any_number_of_threads(num_threads: int) -> None:
    random = np.random.default_rng(5)
    logits, settings = make_logits(40, 5000, random), make_settings(40, random)
    together = cpu_ops(2).sample(logits, settings)
    ops = cpu_ops(num_threads)
    assert (ops.sample(logits, settings) == together).all()
    for row in range(40):
        assert ops.sample(logits[row : row + 1], select(settings, [row]))[0] == together[row]


def test_rows_without_a_finite_largest_logit_give_no_token() -> None:
    logits = torch.zeros(5, 20)
    logits[0] = -torch.inf
    logits[1, 3] = torch.nan
    logits[2, 3] = torch.inf
    logits[3, 3] = -torch.inf
    random = np.random.default_rng(0)
    for temperature in (0.0, 1.0):
        settings = dataclasses.replace(make_settings(5, random), temperature=np.full(5, temperature, np.float32))
        assert (cpu_ops().sample(logits, settings) < 0).tolist() == [True, True, True, False, False]
        assert (REFERENCE.sample(logits, settings) < 0).tolist() == [True, True, True, False, False]


def test_arrays_that_the_kernel_cannot_read_are_refused() -> None:
    settings = make_settings(2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="contiguous float32 logits"):
        cpu_ops().sample(torch.zeros(20, 2).T, settings)
    with pytest.raises(ValueError, match="top_k must be contiguous int32"):
        cpu_ops().sample(torch.zeros(2, 20), dataclasses.replace(settings, top_k=np.zeros(2, np.int64)))
    with pytest.raises(ValueError, match="top_p must be contiguous float64"):
        cpu_ops().sample(torch.zeros(2, 20), dataclasses.replace(settings, top_p=np.zeros(4)[::2]))


@pytest.mark.parametrize("vocab_size", [1, 7, 9, 1000, 4099, 49_152])
def test_log_probabilities_and_their_order_are_the_references(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    num_rows = 32 if vocab_size > 10_000 else 150
    logits = make_logits(num_rows, vocab_size, random)
    token_ids = random.integers(0, vocab_size, num_rows)
    num_top = np.minimum(random.choice([0, 1, 5, 20, 300], num_rows), vocab_size).astype(np.int32)
    found, expected = cpu_ops().logprobs(logits, token_ids, num_top), REFERENCE.logprobs(logits, token_ids, num_top)
    assert found.ranks.tolist() == expected.ranks.tolist()
    np.testing.assert_allclose(found.chosen, expected.chosen, rtol=1e-5, atol=1e-5)
    for row, count in enumerate(num_top.tolist()):
        assert found.top_ids[row, :count].tolist() == expected.top_ids[row, :count].tolist()
        assert found.top_ranks[row, :count].tolist() == expected.top_ranks[row, :count].tolist()
        np.testing.assert_allclose(found.top_values[row, :count], expected.top_values[row, :count], rtol=1e-5, atol=1e-5)


def test_a_row_without_a_finite_largest_logit_has_the_first_tokens_and_no_log_probabilities() -> None:
    logits = torch.zeros(3, 20)
    logits[0, 3], logits[1, 3], logits[2] = torch.nan, torch.inf, -torch.inf
    for ops in (cpu_ops(), REFERENCE):
        found = ops.logprobs(logits, np.full(3, 5), np.full(3, 2, np.int32))
        assert np.isnan(found.chosen).all()
        assert np.isnan(found.top_values).all()
        assert (found.ranks.tolist(), found.top_ids.tolist(), found.top_ranks.tolist()) == ([1] * 3, [[0, 1]] * 3, [[1, 1]] * 3)


def test_a_rows_log_probabilities_are_its_own_on_any_number_of_threads() -> None:
    random = np.random.default_rng(6)
    logits = make_logits(20, 3000, random)
    token_ids, num_top = random.integers(0, 3000, 20), random.choice([0, 3, 20], 20).astype(np.int32)
    together = cpu_ops(2).logprobs(logits, token_ids, num_top)
    for num_threads in (1, 3):
        ops = cpu_ops(num_threads)
        for row in range(20):
            one, count = slice(row, row + 1), num_top[row]
            alone = ops.logprobs(logits[one], token_ids[one], num_top[one])
            assert (alone.chosen[0].tobytes(), alone.ranks[0]) == (together.chosen[row].tobytes(), together.ranks[row])
            assert alone.top_ids[0].tolist() == together.top_ids[row, :count].tolist()
            assert alone.top_values[0].tobytes() == together.top_values[row, :count].tobytes()


def test_log_probabilities_of_what_is_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="within the vocabulary"):
        cpu_ops().logprobs(torch.zeros(1, 5), np.array([5]), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="within the vocabulary"):
        cpu_ops().logprobs(torch.zeros(1, 5), np.array([0]), np.full(1, 6, np.int32))

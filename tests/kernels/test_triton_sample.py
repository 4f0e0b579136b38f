"""Triton's sampling and log probabilities against the reference; tests/engine/test_sampler.py has the definitions that both must meet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_cases import make_logits, make_settings, select
from triton_cases import DEVICE, both_ops

from kernels import random as counter_based
from kernels.sampling import NUM_WORDS, Draws
from kernels.triton import sampling, token_logprobs
from kernels.triton.philox import uniform
from kernels.triton.tokens import fetch_tokens

OPS, REFERENCE = both_ops(torch.float32)
SEEDS = st.integers(0, 2**32)


@settings(max_examples=8)
@given(st.integers(1, 300), st.sampled_from([64, 4096]), SEEDS)
def test_it_draws_what_the_reference_draws(vocab_size, tile, seed):
    random = np.random.default_rng(seed)
    logits, draws = make_logits(4, vocab_size, random).to(DEVICE), make_settings(4, random)
    before = logits.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "TILE", tile)
        drawn = OPS.sample(logits, draws)
    assert torch.equal(logits, before)
    assert drawn.tolist() == REFERENCE.sample(logits, draws).tolist()


def test_a_rows_token_is_its_own():
    random = np.random.default_rng(5)
    logits, draws = make_logits(4, 200, random).to(DEVICE), make_settings(4, random)
    together = OPS.sample(logits, draws)
    for row in range(4):
        assert OPS.sample(logits[row : row + 1], select(draws, [row]))[0] == together[row]


def test_rows_without_a_finite_largest_logit_give_no_token():
    logits = torch.zeros(5, 20, device=DEVICE)
    logits[0] = -torch.inf
    logits[1, 3] = torch.nan
    logits[2, 3] = torch.inf
    logits[3, 3] = -torch.inf
    draws = make_settings(5, np.random.default_rng(0))
    for temperature in (0.0, 1.0):
        drawn = OPS.sample(logits, dataclasses.replace(draws, temperature=np.full(5, temperature, np.float32)))
        assert (drawn < 0).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_pass_draws_from_logits_of_any_type_what_they_give_widened(dtype):
    random = np.random.default_rng(7)
    logits, settings = make_logits(6, 300, random).to(DEVICE, dtype), make_settings(6, random)
    logits[1, 5] = torch.nan
    draws = new_draws(6, num_slots=9)
    words = np.empty((6, NUM_WORDS), np.int64)
    settings.pack(words)
    draws.settings.copy_(torch.from_numpy(words))
    draws.slots.copy_(torch.tensor([8, 2, 0, 5, 4, 1]))
    draws.counts.copy_(torch.tensor([6, 6, 4]))  # the last two rows are not to be drawn from
    sampling.draw(logits, draws)
    expected = OPS.sample(logits.float(), settings).tolist()
    assert expected[1] == -1
    assert draws.token_ids.tolist() == [*expected[:4], 99, 99]
    assert draws.last_token_ids.tolist() == [expected[2], 99, 0, 99, 99, expected[3], 99, 99, expected[0]]


def test_tokens_that_only_the_device_knows_are_read_by_their_slots():
    token_ids = torch.tensor([7, -1, 0, -4, -2], dtype=torch.int32, device=DEVICE)
    fetch_tokens(token_ids, torch.tensor([10, 11, 12, 13], dtype=torch.int32, device=DEVICE))
    assert token_ids.tolist() == [7, 10, 0, 13, 11]


def new_draws(num_rows: int, num_slots: int) -> Draws:
    """All results are 99 before."""
    return Draws(
        counts=torch.zeros(3, dtype=torch.int32, device=DEVICE),
        settings=torch.zeros(num_rows, NUM_WORDS, dtype=torch.int64, device=DEVICE),
        slots=torch.zeros(num_rows, dtype=torch.int32, device=DEVICE),
        token_ids=torch.full((num_rows,), 99, dtype=torch.int64, device=DEVICE),
        last_token_ids=torch.full((num_slots,), 99, dtype=torch.int32, device=DEVICE),
    )


@triton.jit
def uniform_kernel(out_ptr, words_ptr, num_words: tl.constexpr):
    row = tl.program_id(0)
    tl.store(
        out_ptr + row, uniform(tl.load(words_ptr + row), tl.load(words_ptr + num_words + row), tl.load(words_ptr + 2 * num_words + row))
    )


def test_random_numbers_have_the_bits_of_those_drawn_on_the_host():
    words = np.random.default_rng(0).integers(0, 2**64, (3, 50), np.uint64)
    words[:, 0] = 2**64 - 1
    words[1] &= 0xFFFFFFFF
    out = torch.empty(50, dtype=torch.float64, device=DEVICE)
    uniform_kernel[(50,)](out, torch.from_numpy(words.view(np.int64)).to(DEVICE), num_words=50)
    assert out.cpu().numpy().tolist() == counter_based.uniform(*words).tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@settings(max_examples=12)
@given(st.integers(1, 300), st.sampled_from([64, 4096]), SEEDS)
def test_log_probabilities_and_their_order_are_the_references(vocab_size, tile, seed):
    random = np.random.default_rng(seed)
    logits = make_logits(5, vocab_size, random).to(DEVICE)
    if random.random() < 0.4:
        logits[0, random.integers(vocab_size)] = random.choice([np.nan, np.inf])
    if random.random() < 0.2:
        logits[1] = -torch.inf
    logits[2, random.random(vocab_size) < 0.2] = random.choice([0.0, -0.0])  # equals of two bit patterns
    token_ids, num_top = random.integers(0, vocab_size, 5), np.minimum(random.choice([0, 1, 5, 20, 300], 5), vocab_size).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_logprobs, "TILE", tile)
        found = OPS.logprobs(logits, token_ids, num_top)
    expected = REFERENCE.logprobs(logits, token_ids, num_top)
    assert found.ranks.tolist() == expected.ranks.tolist()
    np.testing.assert_allclose(found.chosen, expected.chosen, rtol=1e-5, atol=1e-5)
    for row, count in enumerate(num_top):
        assert found.top_ids[row, :count].tolist() == expected.top_ids[row, :count].tolist()
        assert found.top_ranks[row, :count].tolist() == expected.top_ranks[row, :count].tolist()
        np.testing.assert_allclose(found.top_values[row, :count], expected.top_values[row, :count], rtol=1e-5, atol=1e-5)


def test_a_rows_log_probabilities_are_its_own():
    random = np.random.default_rng(2)
    logits = make_logits(4, 500, random).round().to(DEVICE)
    token_ids, num_top = random.integers(0, 500, 4), np.array([3, 0, 20, 70], np.int32)
    together = OPS.logprobs(logits, token_ids, num_top)
    for row, count in enumerate(num_top):
        one = slice(row, row + 1)
        alone = OPS.logprobs(logits[one], token_ids[one], num_top[one])
        assert (alone.chosen[0], alone.ranks[0]) == (together.chosen[row], together.ranks[row])
        for name in ("top_ids", "top_ranks", "top_values"):
            assert getattr(alone, name)[0].tolist() == getattr(together, name)[row, :count].tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_rows_with_a_nan_or_without_a_finite_largest_logit_have_no_log_probabilities():
    logits = torch.zeros(4, 20, device=DEVICE)
    logits[:, 15] = 3.0
    logits[0, 3] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    for ops in (OPS, REFERENCE):
        found = ops.logprobs(logits, np.full(4, 5), np.full(4, 2, np.int32))
        assert np.isnan(found.chosen).tolist() == [True, True, True, False]
        assert np.isnan(found.top_values).tolist() == [[True, True]] * 3 + [[False, False]]
        assert found.top_ids.tolist() == [[0, 1]] * 3 + [[15, 0]]
        assert found.top_ranks.tolist() == [[1, 1]] * 3 + [[1, 2]]
        assert found.ranks.tolist() == [1, 1, 1, 2]

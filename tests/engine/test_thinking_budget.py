"""Reasoning that has used its budget up is ended, token by token."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InvalidRequestError
from engine.llm import LLM
from engine.reasoning.budget import ThinkingBudget
from engine.sampling_params import SamplingParams
from engine.stages.thinking_budget import forced_token

BEGIN, END = (7,), (8, 9)


def _forced(generated: list[int], max_tokens: int, is_open: bool) -> int | None:
    budget = ThinkingBudget(max_tokens=max_tokens, begin_token_ids=BEGIN, end_token_ids=END, is_open=is_open)
    return forced_token(budget, np.array(generated, np.int32))


@pytest.mark.parametrize(
    ("generated", "is_open", "forced"),
    [
        ([1, 2], True, None),  # two of three
        ([1, 2, 3], True, 8),
        ([1, 2, 3, 8], True, 9),
        ([1, 2, 3, 8, 9], True, None),
        ([1, 2, 3, 8, 9, 4, 4, 4], True, None),
        ([1, 8, 9, 4, 4, 4], True, None),  # ended by itself
        ([1, 2, 8], True, 8),  # the beginning of an end is no end
        ([1, 2, 3, 4], False, None),  # it does not reason
        ([7, 1, 2], False, None),
        ([7, 1, 2, 3], False, 8),
        ([5, 7, 1, 2, 3, 8], False, 9),
        ([1] * 20 + [7, 1, 2, 3], False, None),  # that is no beginning
    ],
)
def test_the_end_is_forced_once_the_budget_is_spent(generated: list[int], is_open: bool, forced: int | None) -> None:
    assert _forced(generated, 3, is_open) == forced


def test_a_budget_of_nothing_ends_reasoning_at_once() -> None:
    assert _forced([], 0, is_open=True) == 8
    assert _forced([7], 0, is_open=False) == 8
    assert _forced([], 0, is_open=False) is None


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="negative"):
        ThinkingBudget(max_tokens=-1, begin_token_ids=BEGIN, end_token_ids=END)


def test_the_engine_generates_the_end_where_the_budget_says() -> None:
    llm = LLM(max_model_len=256, kv_cache_memory=32 << 20, max_num_seqs=4)
    end = tuple(llm.tokenizer.encode("</think>", add_special_tokens=False))
    assert len(end) > 1
    budget = ThinkingBudget(max_tokens=5, begin_token_ids=end, end_token_ids=end, is_open=True)
    free = SamplingParams(temperature=0, max_tokens=16)
    bounded = SamplingParams(temperature=0, max_tokens=16, thinking=budget)
    first, second = llm.generate(["Once upon a time"] * 2, [free, bounded], use_tqdm=False)
    assert second.outputs[0].token_ids[:5] == first.outputs[0].token_ids[:5]
    assert tuple(second.outputs[0].token_ids[5 : 5 + len(end)]) == end
    assert len(second.outputs[0].token_ids) == 16

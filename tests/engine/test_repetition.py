from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.repetition import RepetitionDetector
from engine.sampling_params import RepetitionDetection


def repeats(token_ids: list[int], rule: RepetitionDetection) -> bool:
    """The definition: the end of the tokens is one pattern, min_count times."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length <= len(token_ids) and token_ids[-length:] == token_ids[-size:] * rule.min_count:
            return True
    return False


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 6), st.integers(0, 5), st.integers(2, 5))
@settings(max_examples=100, deadline=None)
def test_a_repetition_is_noticed_with_the_very_token_that_completes_it(
    token_ids: list[int], min_size: int, more: int, min_count: int
) -> None:
    rule = RepetitionDetection(max_pattern_size=min_size + more, min_pattern_size=min_size, min_count=min_count)
    detector = RepetitionDetector(rule)
    for end, token_id in enumerate(token_ids, start=1):
        assert detector.append(token_id) == repeats(token_ids[:end], rule)


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_pattern_size": 0},
        {"max_pattern_size": 5000},
        {"max_pattern_size": 4, "min_pattern_size": 5},
        {"max_pattern_size": 4, "min_count": 1},
    ],
)
def test_sizes_that_make_no_pattern_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        RepetitionDetection(**sizes)
    assert refusal.value.param == "repetition_detection"

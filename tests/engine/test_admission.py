from __future__ import annotations

import pytest

from engine.admission import Admission
from engine.errors import OverloadedError


def test_as_many_requests_wait_as_may_and_one_that_leaves_makes_room() -> None:
    admission = Admission(max_requests=2, max_tokens=None)
    admission.enter("a", 10**6)
    admission.enter("b", 10**6)
    with pytest.raises(OverloadedError, match="2 requests are waiting"):
        admission.enter("c", 1)
    admission.leave("a")
    admission.leave("a")
    admission.enter("c", 1)
    assert admission.num_waiting == 2


def test_prompt_tokens_are_bounded_together_but_a_prompt_alone_is_always_let_in() -> None:
    admission = Admission(max_requests=None, max_tokens=100)
    admission.enter("huge", 5000)
    with pytest.raises(OverloadedError, match="requests with 5000 prompt tokens are waiting; with these 1 it would be more than may, 100"):
        admission.enter("a", 1)
    admission.leave("huge")
    admission.enter("a", 60)
    admission.enter("b", 40)
    with pytest.raises(OverloadedError):
        admission.enter("c", 1)
    admission.leave("a")
    admission.enter("c", 60)


def test_without_bounds_all_are_let_in() -> None:
    admission = Admission(None, None)
    for i in range(5000):
        admission.enter(f"{i}", 1000)
    assert admission.num_waiting == 5000


def test_one_that_was_refused_does_not_count() -> None:
    admission = Admission(max_requests=1, max_tokens=None)
    admission.enter("a", 1)
    with pytest.raises(OverloadedError):
        admission.enter("b", 1)
    admission.leave("b")
    admission.leave("a")
    assert admission.num_waiting == 0

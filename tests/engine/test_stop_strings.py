from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import StopStrings

# Two letters, so that stop strings overlap each other and the text all the time.
texts = st.text(alphabet="ab\n", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(edges)]


def run(stops: list[str], pieces: list[str], include: bool) -> tuple[str, str | None]:
    watcher = StopStrings(stops, include)
    sent = ""
    for piece in pieces:
        delta, matched = watcher.append(piece)
        sent += delta
        if matched is not None:
            return sent, matched
    return sent + watcher.finish(), None


def oracle(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """Looks at every beginning of the whole text in turn."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@given(stop_lists, texts, st.lists(st.integers(0, 30), max_size=8), st.booleans())
def test_the_result_is_that_of_the_whole_text_however_it_is_cut(stops: list[str], text: str, cuts: list[int], include: bool) -> None:
    assert run(stops, pieces_of(text, cuts), include) == oracle(stops, text, include)


@given(stop_lists, texts, st.lists(st.integers(0, 30), max_size=8))
def test_no_text_that_a_stop_string_removes_is_ever_sent(stops: list[str], text: str, cuts: list[int]) -> None:
    watcher = StopStrings(stops)
    final = oracle(stops, text, include=False)[0]
    sent = ""
    for piece in pieces_of(text, cuts):
        delta, matched = watcher.append(piece)
        sent += delta
        assert final.startswith(sent)
        if matched is not None:
            break


def test_a_stop_string_split_over_three_tokens_is_found_and_the_text_before_it_delivered() -> None:
    watcher = StopStrings(["</s>"])
    assert watcher.append("answer<") == ("answer", None)
    assert watcher.append("/s") == ("", None)
    assert watcher.append("> more") == ("", "</s>")


def test_text_that_only_began_like_a_stop_string_is_released() -> None:
    watcher = StopStrings(["</s>"])
    assert watcher.append("a </") == ("a ", None)
    assert watcher.append("b>") == ("</b>", None)


def test_held_text_is_released_at_the_end() -> None:
    watcher = StopStrings(["stop"])
    assert watcher.append("do not sto") == ("do not ", None)
    assert watcher.finish() == "sto"


def test_the_stop_string_is_part_of_the_output_when_asked_for() -> None:
    assert StopStrings(["END"], include_in_output=True).append("the END of it") == ("the END", "END")


def test_without_stop_strings_text_passes_at_once() -> None:
    watcher = StopStrings([])
    assert watcher.append("anything") == ("anything", None)
    assert watcher.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings([""])

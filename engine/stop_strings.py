"""Ending a sequence at a string that the client named, wherever its tokens are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    delta_to_send: str  # text that no stop string can take back any more
    matched: str | None  # the stop string that ended the sequence


class StopStrings:
    """Watches the text of one sequence for stop strings.

    Of several, the one that is complete first ends the sequence; of those complete at the same character, the longest. So the result
    does not depend on how the text was cut into pieces. Text that could be the beginning of a stop string is held back until it is
    known not to be.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        """Raises ValueError for an empty stop string, which would end every sequence before it began."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._include_in_output = include_in_output
        self._held = ""  # the longest end of the text so far that begins a stop string

    def append(self, text: str) -> StopResult:
        """The next piece of text. After a match, nothing more may be appended."""
        if not self._stops:
            return StopResult(text, None)
        text = self._held + text
        # (end, start, stop) of the first occurrence of each
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return StopResult(text[: end if self._include_in_output else start], stop)
        num_held = max(_overlap(text, stop) for stop in self._stops)
        sent = len(text) - num_held
        self._held = text[sent:]
        return StopResult(text[:sent], None)

    def finish(self) -> str:
        """The text still held back, when the sequence ends otherwise."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest proper beginning of `stop` that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

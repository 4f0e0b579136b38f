"""Text that comes in pieces, for parsers written as though it were all there.

A parser is a generator over this reader: where the text ends for now it yields, and goes on at the same place when there is more. What it
does depends on the text alone and never on the pieces, as no method here tells where one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]  # yields whenever it needs more text; returns its result

_SPACE = " \t\r\n"


class Scanner(Protocol):
    """Takes text from its beginning for as long as it is what the scanner looks for."""

    finished: bool  # it wants no more

    def read(self, text: str, start: int) -> int:
        """Where text[start:] stops being it, which is the text's end unless it has finished."""
        ...


class TextReader:
    """Text up to now, and how much of it has been read. Each method that returns Steps is used with `yield from`."""

    def __init__(self) -> None:
        self._text = ""
        self._place = 0  # all before it has been read
        self._mark: int | None = None  # what has been read since must be kept
        self._ended = False

    def append(self, text: str) -> None:
        kept_from = self._place if self._mark is None else self._mark
        self._text = self._text[kept_from:] + text
        self._place -= kept_from
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        """There will be no more."""
        self._ended = True

    def set_mark(self) -> None:
        """Remember this place, to come back to it."""
        self._mark = self._place

    def back_to_mark(self) -> None:
        """Go back to the place that was marked last."""
        assert self._mark is not None
        self._place, self._mark = self._mark, None

    def forget_mark(self) -> None:
        self._mark = None

    def peek(self) -> Steps[str]:
        """The next character, unread; an empty string at the end."""
        while self._place == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._place]

    def accept(self, *literals: str) -> Steps[str]:
        """Read the first of the literals that the text goes on with, and return it; an empty string when it is none of them."""
        while True:
            undecided = False
            for literal in literals:
                if self._text.startswith(literal, self._place):
                    if undecided and not self._ended:
                        break  # one that comes before it may still turn out to be what stands here
                    self._place += len(literal)
                    return literal
                undecided |= literal.startswith(self._text[self._place : self._place + len(literal)])
            if self._ended or not undecided:
                return ""
            yield

    def skip(self, characters: str = _SPACE) -> Steps[None]:
        """Read over these characters."""
        while (character := (yield from self.peek())) and character in characters:
            self._place += 1

    def read_while(self, belongs: Callable[[str], bool]) -> Steps[str]:
        """Read the characters that belong."""
        read = ""
        while (character := (yield from self.peek())) and belongs(character):
            read += character
            self._place += 1
        return read

    def pass_until(self, markers: tuple[str, ...], sink: Callable[[str], None]) -> Steps[str]:
        """Read up to the first marker and over it, giving the text before it to `sink` as soon as it can be no part of one.

        Returns the marker, or an empty string at the end of the text.
        """
        while True:
            text, place = self._text, self._place
            found = [(start, marker) for marker in markers if (start := text.find(marker, place)) >= 0]
            held = 0 if self._ended else max([_overlap(text, marker, place) for marker in markers], default=0)
            # What is held may turn out to be a marker that begins before the one that was found.
            start, marker = min(found, default=(len(text), ""))
            if marker and start <= len(text) - held:
                self._give(start, sink)
                self._place += len(marker)
                return marker
            self._give(min(start, len(text) - held), sink)
            if self._ended:
                return ""
            yield

    def scan(self, scanner: Scanner, sink: Callable[[str], None]) -> Steps[None]:
        """Read what the scanner takes, giving it to `sink` as it comes, until it has finished or the text ends."""
        while True:
            self._give(scanner.read(self._text, self._place), sink)
            if scanner.finished or self._ended:
                return
            yield

    def _give(self, end: int, sink: Callable[[str], None]) -> None:
        if end > self._place:
            text = self._text[self._place : end]
            self._place = end
            sink(text)


def _overlap(text: str, marker: str, start: int) -> int:
    """The length of the longest proper beginning of `marker` with which text[start:] ends."""
    for length in range(min(len(marker) - 1, len(text) - start), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0

"""Finds where a JSON value ends, in text that comes in pieces."""

from __future__ import annotations

import re
from enum import Enum

_SPACE = re.compile(r"[ \t\r\n]*")
# Line breaks within strings are not JSON, but models write them; whoever reads the text is to judge.
_STRING_BODY = re.compile(r'[^"\\]*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[-+.0-9A-Za-z_]*")
_WORDS = frozenset({"true", "false", "null"})
_ESCAPES = frozenset('"\\/bfnrtu')
_MAX_DEPTH = 200


class _Expect(Enum):
    VALUE = 1
    ITEM_OR_END = 2  # after [
    KEY_OR_END = 3  # after {
    KEY = 4  # after a comma in an object
    COLON = 5
    COMMA_OR_END = 6
    STRING = 7  # within one
    ESCAPE = 8  # after a backslash
    WORD = 9  # within a number, true, false or null
    NOTHING = 10


class JsonScanner:
    """Takes one JSON value. `complete` when it has come to its end, `finished` also when what comes next does not fit it."""

    def __init__(self) -> None:
        self.finished = False
        self.complete = False
        self._expect = _Expect.VALUE
        self._open: list[str] = []  # the brackets that would close what is open, outermost first
        self._is_key = False  # the string being read
        self._word = ""

    def read(self, text: str, start: int) -> int:
        place = start
        while place < len(text) and not self.finished:
            place = self._step(text, place)
        return place

    def end(self) -> None:
        """There is no more text, which is where a number at the outermost level ends."""
        if self._expect is _Expect.WORD and not self.finished:
            self._end_word()
        self.finished = True

    def _step(self, text: str, place: int) -> int:
        match self._expect:
            case _Expect.STRING:
                place = _end(_STRING_BODY, text, place)
                if place < len(text):
                    if text[place] == "\\":
                        self._expect = _Expect.ESCAPE
                    else:
                        self._end_string()
                    place += 1
                return place
            case _Expect.ESCAPE:
                if text[place] not in _ESCAPES:
                    return self._fail(place)
                self._expect = _Expect.STRING
                return place + 1
            case _Expect.WORD:
                stop = _end(_WORD, text, place)
                self._word += text[place:stop]
                if stop < len(text):
                    self._end_word()
                return stop
        place = _end(_SPACE, text, place)
        return place if place == len(text) else self._structure(text[place], place)

    def _structure(self, character: str, place: int) -> int:
        expect = self._expect
        closes = self._open and character == self._open[-1]
        if closes and expect in (_Expect.COMMA_OR_END, _Expect.ITEM_OR_END, _Expect.KEY_OR_END):
            self._open.pop()
            self._end_value()
        elif expect is _Expect.COMMA_OR_END and character == ",":
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
        elif expect is _Expect.COLON and character == ":":
            self._expect = _Expect.VALUE
        elif expect in (_Expect.KEY, _Expect.KEY_OR_END) and character == '"':
            self._expect, self._is_key = _Expect.STRING, True
        elif expect in (_Expect.VALUE, _Expect.ITEM_OR_END):
            return self._begin_value(character, place)
        else:
            return self._fail(place)
        return place + 1

    def _begin_value(self, character: str, place: int) -> int:
        if character == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif character in "{[" and len(self._open) < _MAX_DEPTH:
            self._open.append("}" if character == "{" else "]")
            self._expect = _Expect.KEY_OR_END if character == "{" else _Expect.ITEM_OR_END
        elif character in "-0123456789tfn":
            self._expect, self._word = _Expect.WORD, character
        else:
            return self._fail(place)
        return place + 1

    def _end_string(self) -> None:
        if self._is_key:
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _end_word(self) -> None:
        if self._word in _WORDS or _NUMBER.fullmatch(self._word):
            self._end_value()
        else:
            self._fail(0)

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END
        if not self._open:
            self.finished = self.complete = True

    def _fail(self, place: int) -> int:
        self.finished = True
        return place


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where the longest match at `place` ends; the patterns also match nothing."""
    found = pattern.match(text, place)
    assert found is not None
    return found.end()

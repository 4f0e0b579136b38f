"""How large a regular expression is once its counted repetitions are written out, which is what a matcher of it costs."""

from __future__ import annotations

import re

MAX_REGEX_SIZE = 20_000  # of one constraint

_COUNT = re.compile(r"\{(\d{1,12})?(,(\d{1,12})?)?\}")
_LARGEST = 1 << 40


def regex_size(pattern: str) -> int:
    """Characters and classes of the pattern, those in groups with {m,n} counted max(m, n) times.

    An estimate for any dialect: a pattern that is not well formed has some size too.
    """
    totals = [0]  # of the open groups, innermost last
    last = 0  # size of what a repetition would repeat
    i = 0
    while i < len(pattern):
        character = pattern[i]
        count = _COUNT.match(pattern, i) if character == "{" else None
        if count is not None:
            times = max([1, *(int(number) for number in (count[1], count[3]) if number)])
            totals[-1] = min(_LARGEST, totals[-1] + last * (times - 1))
            last *= times
            i = count.end()
            continue
        if character == "(":
            totals.append(0)
            last = 0
        elif character == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif character not in "*+?|":
            i = _end_of_class(pattern, i) if character == "[" else i + (character == "\\")
            last = 1
            totals[-1] += 1
        i += 1
    return sum(totals)


def _end_of_class(pattern: str, start: int) -> int:
    """The index of the bracket that closes the class; of the last character if none does."""
    i = start + 1
    while i < len(pattern) and pattern[i] != "]":
        i += 1 + (pattern[i] == "\\")
    return min(i, len(pattern) - 1)

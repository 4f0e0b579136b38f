"""JSON Schema's patterns are ECMAScript's regular expressions, but validators read them each in their own language's way.

Here they become ones for the matcher whose matches hold whoever reads the original. What languages disagree about is refused.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\u\{[^}]*\}|\\[pP]\{[^}]*\}|\\.|\(\?.|\{,|\[\^?\]?|.", re.DOTALL)
# Some languages count digits, letters and spaces of all scripts, others ASCII's alone: what all take for one, and what some do.
_ALL_TAKE = {r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\s": r" \t\n\r\f\v"}
_SOME_TAKE = {r"\d": r"\p{Nd}", r"\w": r"\p{Alphabetic}\p{M}\p{N}\p{Pc}", r"\s": r"\s\x{1c}-\x{1f}\x{feff}"}
_ANY = r"[^\n\r\x{2028}\x{2029}]"
_LETTERS = frozenset("tnrfvxupP")  # escapes that mean the same everywhere, or that the matcher's own parser refuses


class UnsupportedPatternError(ValueError):
    """Part of a pattern that is not enforced; the message is about that part."""


def portable(pattern: str) -> str:
    """The pattern in Rust's syntax. Raises UnsupportedPatternError."""
    parts: list[str] = []
    opening = ""  # of the class that it is in: [ or [^
    previous = ""
    for token in _TOKEN.findall(pattern):
        if token.lower() in _ALL_TAKE:
            parts.append(_class(token, negated=opening == "[^"))
        elif token.startswith("\\"):
            if token[1:2].isalnum() and token[1] not in _LETTERS:
                raise UnsupportedPatternError(f"the escape {token}")
            parts.append(token)
        elif opening:
            if token.startswith("[") or (token == previous and token in "&-~"):
                raise UnsupportedPatternError(f"{token} within a class: write \\{token}")
            opening = "" if token == "]" else opening
            parts.append(token)
        elif token in ("[]", "[^]", "{,") or (token.startswith("(?") and token != "(?:"):
            raise UnsupportedPatternError(token)
        else:
            opening = token if token.startswith("[") else ""
            parts.append(_ANY if token == "." else token)
        previous = token
    return "".join(parts)


def _class(token: str, negated: bool) -> str:
    """\\d and the like as a class of characters; within a negated class the other way round, as that takes away what this gives."""
    complements = token.isupper()
    taken = (_SOME_TAKE if complements != negated else _ALL_TAKE)[token.lower()]
    return f"[^{taken}]" if complements else f"[{taken}]"

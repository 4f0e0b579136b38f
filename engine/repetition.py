"""Repetition detection: notices when a sequence does nothing any more but say the same again."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.errors import InvalidRequestError

MAX_PATTERN_SIZE = 1024


class RepetitionDetection(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """End a sequence whose newest tokens are one pattern, `min_count` times in a row.

    Sound settings for prose are max_pattern_size 64, min_count 4 and min_pattern_size 2. Short patterns do occur in good answers (rows
    of dashes, zeros of a table), so whoever wants those lets patterns of one token count only with a larger min_count.
    """

    max_pattern_size: int  # tokens of the longest pattern that is looked for
    min_pattern_size: int = 1  # tokens of the shortest
    min_count: int = 4  # occurrences in a row, the first one included

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for sizes and counts that make no pattern."""
        for holds, rule in (
            (1 <= self.max_pattern_size <= MAX_PATTERN_SIZE, f"max_pattern_size must be between 1 and {MAX_PATTERN_SIZE}"),
            (1 <= self.min_pattern_size <= self.max_pattern_size, "min_pattern_size must be between 1 and max_pattern_size"),
            (2 <= self.min_count <= 10_000, "min_count must be between 2 and 10000"),
        ):
            if not holds:
                raise InvalidRequestError(f"repetition_detection: {rule}", param="repetition_detection")


class RepetitionDetector:
    """One sequence's generated tokens as they come. For each size of pattern it keeps how long the end of the sequence has had it."""

    def __init__(self, settings: RepetitionDetection) -> None:
        size = settings.max_pattern_size
        self._recent = np.full(size, -1, np.int64)  # the newest tokens; entry i came i + 1 tokens before the one that comes next
        self._run_lengths = np.zeros(size, np.int64)  # entry i: the newest tokens, so many of them, each equal the one i + 1 before it
        # A pattern that stands there c times equals itself c - 1 times.
        self._needed = np.arange(1, size + 1) * (settings.min_count - 1)
        self._needed[: settings.min_pattern_size - 1] = np.iinfo(np.int64).max

    def append(self, token_id: int) -> bool:
        """Whether the sequence repeats itself with this token."""
        self._run_lengths += 1
        self._run_lengths *= self._recent == token_id
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token_id
        return bool((self._run_lengths >= self._needed).any())

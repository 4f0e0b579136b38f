"""Repetition detection: notices when a sequence does nothing any more but say the same again."""

from __future__ import annotations

import numpy as np

from engine.sampling_params import RepetitionDetection


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

"""bad_words: sequences of tokens that are never generated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.stages.stage import LogitsRows
from engine.step import NewSequence


class BadWords:
    """Masks the last token of a banned sequence where the tokens before it have just been generated; the prompt does not count."""

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        self._token_ids = token_ids
        self._banned: dict[int, _BannedSequences] = {}  # by slot

    def admit(self, new: NewSequence) -> bool:
        self._banned.pop(new.slot, None)
        sequences = new.params.bad_words_token_ids
        if sequences:
            self._banned[new.slot] = _BannedSequences(sequences, new.num_prompt_tokens)
        return bool(sequences)

    def apply(self, batch: LogitsRows) -> None:
        masked = [
            self._banned[slot].after(self._token_ids[slot], position)
            for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True)
        ]
        batch.logits[batch.entries(masked)] = float("-inf")


class _BannedSequences:
    """One request's, ordered by the token that comes before the last, so that a step looks at few of them."""

    def __init__(self, sequences: tuple[tuple[int, ...], ...], num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._always = [sequence[0] for sequence in sequences if len(sequence) == 1]
        self._by_token: dict[int, list[tuple[int, ...]]] = {}
        for sequence in sequences:
            if len(sequence) > 1:
                self._by_token.setdefault(sequence[-2], []).append(sequence)

    def after(self, token_ids: NDArray[np.int32], position: int) -> NDArray[np.int64]:
        """The tokens that may not stand at `position`."""
        masked = self._always
        if position > self._num_prompt_tokens:
            ended = [
                sequence[-1]
                for sequence in self._by_token.get(int(token_ids[position - 1]), ())
                if position - (len(sequence) - 1) >= self._num_prompt_tokens
                and tuple(token_ids[position - (len(sequence) - 1) : position].tolist()) == sequence[:-1]
            ]
            masked = masked + ended
        return np.array(masked, np.int64)

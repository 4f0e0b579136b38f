"""min_tokens: what would end the sequence is not drawn before so many tokens are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.stages.stage import LogitsRows
from engine.step import NewSequence


class MinTokens:
    """Masks the EOS and stop tokens of the first `min_tokens` positions after the prompt."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._of_slot: dict[int, tuple[int, NDArray[np.int64]]] = {}  # the first position at which the sequence may end, and its ends

    def admit(self, new: NewSequence) -> bool:
        self._of_slot.pop(new.slot, None)
        params = new.params
        if params.min_tokens:
            ends = {*(() if params.ignore_eos else self._eos_token_ids), *params.stop_token_ids}
            self._of_slot[new.slot] = (new.num_prompt_tokens + params.min_tokens, np.array(sorted(ends), np.int64))
        return bool(params.min_tokens)

    def apply(self, batch: LogitsRows) -> None:
        masked = []
        for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True):
            first, ends = self._of_slot[slot]
            masked.append(ends if position < first else ends[:0])
        batch.logits[batch.entries(masked)] = float("-inf")

"""allowed_token_ids: nothing else is ever drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.stages.stage import LogitsRows
from engine.step import NewSequence


class AllowedTokens:
    """Masks every token that is not in `allowed_token_ids`."""

    def __init__(self) -> None:
        self._allowed: dict[int, NDArray[np.int64]] = {}  # by slot

    def admit(self, new: NewSequence) -> bool:
        self._allowed.pop(new.slot, None)
        allowed = new.params.allowed_token_ids
        if allowed is not None:
            self._allowed[new.slot] = np.unique(np.array(allowed, np.int64))
        return allowed is not None

    def apply(self, batch: LogitsRows) -> None:
        entries = batch.entries([self._allowed[slot] for slot in batch.slots.tolist()])
        kept = batch.logits[entries]
        batch.logits[batch.tensor(batch.rows)] = float("-inf")
        batch.logits[entries] = kept

"""logit_bias: a number added to the logits of chosen tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.stages.stage import LogitsRows
from engine.step import NewSequence


class LogitBias:
    """Adds `logit_bias[token_id]`. Where a bias of 100 meets -100, only one of the two tokens is left, as OpenAI documents it."""

    def __init__(self) -> None:
        self._biases: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}  # by slot: token ids, and what is added to each

    def admit(self, new: NewSequence) -> bool:
        self._biases.pop(new.slot, None)
        bias = new.params.logit_bias
        if bias:
            self._biases[new.slot] = (np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32))
        return bool(bias)

    def apply(self, batch: LogitsRows) -> None:
        biases = [self._biases[slot] for slot in batch.slots.tolist()]
        entries = batch.entries([token_ids for token_ids, _ in biases])
        batch.logits[entries] += batch.tensor(np.concatenate([values for _, values in biases]))

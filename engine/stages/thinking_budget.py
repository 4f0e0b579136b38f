"""thinking_token_budget: reasoning that has used its tokens up is ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.reasoning.budget import ThinkingBudget
from engine.stages.stage import LogitsRows
from engine.step import NewSequence

_MOST_BEFORE = 4  # tokens of white space in front of the marker that begins reasoning


class ThinkingBudgets:
    """Masks all tokens but the next one of the end marker, from the budget's last token on until the marker is there."""

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        self._token_ids = token_ids
        self._of_slot: dict[int, tuple[int, ThinkingBudget]] = {}  # the prompt's length, and the budget

    def admit(self, new: NewSequence) -> bool:
        self._of_slot.pop(new.slot, None)
        budget = new.params.thinking
        if budget is not None:
            self._of_slot[new.slot] = (new.num_prompt_tokens, budget)
        return budget is not None

    def apply(self, batch: LogitsRows) -> None:
        for row, slot, position in zip(batch.rows.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True):
            num_prompt_tokens, budget = self._of_slot[slot]
            forced = forced_token(budget, self._token_ids[slot, num_prompt_tokens:position])
            if forced is not None:
                batch.logits[row] = float("-inf")
                batch.logits[row, forced] = 0.0


def forced_token(budget: ThinkingBudget, generated: NDArray[np.int32]) -> int | None:
    """The token that must come next; None when any may."""
    begins, ends = budget.begin_token_ids, budget.end_token_ids
    start = 0 if budget.is_open else _end_of(begins, generated[: len(begins) + _MOST_BEFORE])
    if start is None or len(generated) < start + budget.max_tokens or _end_of(ends, generated[start:]) is not None:
        return None
    return ends[len(generated) - start - budget.max_tokens]


def _end_of(marker: tuple[int, ...], tokens: NDArray[np.int32]) -> int | None:
    """Where the first occurrence of the marker ends."""
    for place in np.flatnonzero(tokens == marker[0]).tolist():
        if tuple(tokens[place : place + len(marker)].tolist()) == marker:
            return int(place) + len(marker)
    return None

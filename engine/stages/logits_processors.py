"""logits_processors: the caller's own functions of the tokens so far and a row of logits."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray

from engine.sampling_params import LogitsProcessor
from engine.stages.stage import LogitsRows
from engine.step import NewSequence

logger = logging.getLogger("octavo.engine")


class LogitsProcessors:
    """Calls each function with the generated tokens and the row [vocab_size]; the row that it returns, maybe the same, takes its place.

    They run one row at a time: what one raises ends its own request and no other.
    """

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        self._token_ids = token_ids
        self._of_slot: dict[int, tuple[int, tuple[LogitsProcessor, ...]]] = {}  # the prompt's length, and the functions in their order

    def admit(self, new: NewSequence) -> bool:
        self._of_slot.pop(new.slot, None)
        if new.params.logits_processors:
            self._of_slot[new.slot] = (new.num_prompt_tokens, tuple(new.params.logits_processors))
        return bool(new.params.logits_processors)

    def apply(self, batch: LogitsRows) -> None:
        for row, slot, position in zip(batch.rows.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True):
            num_prompt_tokens, processors = self._of_slot[slot]
            generated = self._token_ids[slot, num_prompt_tokens:position].tolist()
            for processor in processors:
                try:
                    batch.logits[row] = _checked(processor(list(generated), batch.logits[row]), batch.logits.shape[1])
                except Exception as error:
                    name = getattr(processor, "__name__", type(processor).__name__)
                    logger.warning("the logits processor %s failed", name, exc_info=error)
                    batch.errors[row] = f"the logits processor {name} failed: {type(error).__name__}: {error}"
                    break


def _checked(result: object, vocab_size: int) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != (vocab_size,):
        found = f"a tensor of {list(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise TypeError(f"it must return the row of logits, a tensor of [{vocab_size}], but returned {found}")
    return result

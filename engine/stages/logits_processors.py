"""logits_processors: the caller's own functions of the tokens so far and a row of logits, or the operator's that the request names."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.logits_processors import LogitsProcessor, LogitsProcessorRegistry, NamedLogitsProcessor
from engine.stages.stage import LogitsRows
from engine.step import NewSequence

logger = logging.getLogger("octavo.engine")


class LogitsProcessors:
    """Calls each function with the generated tokens and the row [vocab_size]; the row that it returns, maybe the same, takes its place.

    They run one row at a time: what one raises, or the making of one, ends its own request and no other. A sequence that is resumed
    gets new ones, so what they go by must be the tokens that they are given.
    """

    def __init__(self, token_ids: NDArray[np.int32], registry: LogitsProcessorRegistry) -> None:
        self._token_ids = token_ids
        self._registry = registry
        # By slot: the prompt's length, and the functions in their order. Those that are not made yet are still what the request wrote.
        self._of_slot: dict[int, tuple[int, list[Any]]] = {}

    def admit(self, new: NewSequence) -> bool:
        self._of_slot.pop(new.slot, None)
        wanted = [*new.params.named_logits_processors, *new.params.logits_processors]
        if wanted:
            self._of_slot[new.slot] = (new.num_prompt_tokens, wanted)
        return bool(wanted)

    def apply(self, batch: LogitsRows) -> None:
        for row, slot, position in zip(batch.rows.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True):
            num_prompt_tokens, processors = self._of_slot[slot]
            generated = self._token_ids[slot, num_prompt_tokens:position].tolist()
            for place, processor in enumerate(processors):
                name = _name(processor)
                try:
                    if isinstance(processor, NamedLogitsProcessor):
                        processor = processors[place] = _Made(name, self._registry.make(processor))
                    batch.logits[row] = _checked(processor(list(generated), batch.logits[row]), batch.logits.shape[1])
                except Exception as error:
                    logger.warning("the logits processor %s failed", name, exc_info=error)
                    batch.errors[row] = f"the logits processor {name} failed: {type(error).__name__}: {error}"
                    break


class _Made:
    """A processor under the name by which it was asked for."""

    def __init__(self, name: str, function: LogitsProcessor) -> None:
        self.name = name
        self._function = function

    def __call__(self, generated: list[int], row: torch.Tensor) -> torch.Tensor:
        return self._function(generated, row)


def _name(processor: Any) -> str:
    name: str = processor.name if isinstance(processor, NamedLogitsProcessor | _Made) else getattr(processor, "__name__", "")
    return name or type(processor).__name__


def _checked(result: object, vocab_size: int) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != (vocab_size,):
        found = f"a tensor of {list(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise TypeError(f"it must return the row of logits, a tensor of [{vocab_size}], but returned {found}")
    return result

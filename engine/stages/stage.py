"""The seam at which a stage attaches to the sampler, and the rows that it is given."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from engine.device_copy import to_device
from engine.step import NewSequence


@dataclass(frozen=True)
class LogitsRows:
    """The rows of a step that use a stage. The rows of the logits that are not named here belong to others."""

    logits: torch.Tensor  # [rows of the step, vocab_size] float32, changed in place
    rows: NDArray[np.int64]  # [n] rows of the logits
    slots: NDArray[np.int64]  # [n]
    positions: NDArray[np.int64]  # [n] place in its sequence of the token to be drawn
    errors: dict[int, str]  # by row of the logits: why the request cannot go on. To be added to; the other rows are not touched by it

    def entries(self, token_ids: SequenceOf[NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The index of the logits' entries at token_ids[i] of the i-th row, for all i, end to end."""
        rows = np.repeat(self.rows, [len(ids) for ids in token_ids])
        return self.tensor(rows), self.tensor(np.concatenate(token_ids))

    def tensor(self, values: NDArray[np.int64] | NDArray[np.int32] | NDArray[np.float32] | NDArray[np.bool_]) -> torch.Tensor:
        """The same values where the logits are."""
        return to_device(values, self.logits.device)


class Stage(Protocol):
    """One change of the logits, with the settings that it needs of each slot.

    A row's result may depend on that row alone. The sampler calls `apply` only when a scheduled row uses the stage.
    """

    def admit(self, new: NewSequence) -> bool:
        """Take over the settings of a sequence that got a slot, in place of its predecessor's; false when it does not use the stage.

        Whatever depends on generated tokens is derived from the table of tokens, as the sequence may be resumed or moved.
        """
        ...

    def apply(self, batch: LogitsRows) -> None:
        """Change the rows' logits in place."""
        ...


@runtime_checkable
class EarlyStage(Stage, Protocol):
    """A stage with work that needs no logits, for a thread of its own while the model computes them."""

    def begin(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Start on the rows that the next `apply` is about; the table holds the tokens before each position."""
        ...

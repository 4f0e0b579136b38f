"""Pooler: from hidden states to one vector for each prompt, beside the sampler."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch_buffers import StepArrays
from engine.pooling_params import PoolingParams
from engine.step import NewSequence


class Pooler:
    """Keeps what it has seen of each pooled sequence by its slot, as a prompt comes in chunks.

    A mean is summed in float64, token after token in the order of positions, so it has the same bits however the prompt was cut and
    whatever else was in the batch, if the hidden states have.
    """

    def __init__(self, num_slots: int) -> None:
        self._params: list[PoolingParams | None] = [None] * num_slots
        self._pools = np.zeros(num_slots, np.bool_)
        self._sums: dict[int, NDArray[np.float64]] = {}  # [hidden_size] by slot

    def admit(self, new: NewSequence) -> None:
        """A sequence takes a slot: what was there is forgotten."""
        self._params[new.slot] = new.pooling
        self._pools[new.slot] = new.pooling is not None
        self._sums.pop(new.slot, None)

    def uses(self, arrays: StepArrays) -> bool:
        """Whether the step computes tokens of pooled sequences, so that hidden states are wanted."""
        return bool(np.count_nonzero(self._pools[arrays.slots]))

    def only_sampling(self, arrays: StepArrays) -> StepArrays:
        """The same step with nothing drawn for pooled sequences."""
        return dataclasses.replace(arrays, samples=arrays.samples & ~self._pools[arrays.slots])

    def pool(self, arrays: StepArrays, hidden_states: torch.Tensor) -> dict[int, bytes]:
        """Take in a step's hidden states [num_tokens, hidden_size]; returns the vectors of the prompts that it completed.

        They are float32, little-endian, by place in the step.
        """
        vectors: dict[int, bytes] = {}
        ends = np.cumsum(arrays.query_lens)
        for i in np.flatnonzero(self._pools[arrays.slots]).tolist():
            slot, end, is_complete = int(arrays.slots[i]), int(ends[i]), bool(arrays.samples[i])
            params = self._params[slot]
            assert params is not None
            if params.needs_every_token:
                self._add(slot, hidden_states[end - int(arrays.query_lens[i]) : end])
                if is_complete:
                    vectors[i] = _finish(self._sums.pop(slot) / float(arrays.starts[i] + arrays.query_lens[i]), params)
            elif is_complete:
                vectors[i] = _finish(_as_numpy(hidden_states[end - 1]), params)
        return vectors

    def _add(self, slot: int, rows: torch.Tensor) -> None:
        values = _as_numpy(rows)
        total = self._sums.get(slot)
        if total is None:
            total = self._sums[slot] = np.zeros(values.shape[1])
        for row in values:  # np.sum over the rows promises no order
            total += row


def _as_numpy(hidden_states: torch.Tensor) -> NDArray[np.float64]:
    return hidden_states.double().cpu().numpy()


def _finish(vector: NDArray[np.float64], params: PoolingParams) -> bytes:
    vector = vector[: params.dimensions]
    if params.normalize:
        # Added up in one order: np.linalg.norm's may differ from one processor to the next, as may a dot product's.
        length = float(np.sqrt(np.add.accumulate(vector * vector)[-1]))
        vector = vector / length if length > 0.0 else vector
    return vector.astype("<f4").tobytes()

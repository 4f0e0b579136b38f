"""The worker's tables of running sequences, and the step's batch built from them in preallocated buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.packed_inputs import PackedInputs
from engine.step import NewSequence, StepInput
from kernels.batch import Batch
from kernels.sampling import NUM_WORDS, Draws, DrawSettings


class SlotTables:
    """What the worker knows of each running sequence: its tokens and its block table, in the row of its slot."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.token_ids = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.block_tables = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.num_prompt_logprobs = np.full(num_slots, -1, np.int64)  # -1: none wanted

    def admit(self, new: NewSequence) -> None:
        self.token_ids[new.slot, : len(new.token_ids)] = new.token_ids
        self.block_tables[new.slot, : len(new.block_ids)] = new.block_ids
        self.num_prompt_tokens[new.slot] = new.num_prompt_tokens
        self.num_prompt_logprobs[new.slot] = -1 if new.prompt_logprobs is None else new.prompt_logprobs

    def apply(self, step: StepInput) -> None:
        for update in step.block_updates:
            self.block_tables[update.slot, update.first_index : update.first_index + len(update.block_ids)] = update.block_ids


class SamplingRows(NamedTuple):
    """The scheduled sequences for which a token is drawn; all are [num_rows]."""

    indices: NDArray[np.int64]  # among the scheduled sequences
    slots: NDArray[np.int64]
    positions: NDArray[np.int64]  # of the token that is drawn


@dataclass(frozen=True)
class StepArrays:
    """The scheduled sequences of a step, side by side; all are [num_seqs]."""

    slots: NDArray[np.int64]
    starts: NDArray[np.int64]
    query_lens: NDArray[np.int64]
    samples: NDArray[np.bool_]

    @staticmethod
    def of(step: StepInput) -> StepArrays:
        return StepArrays(
            np.array(step.slots, np.int64),
            np.array(step.starts, np.int64),
            np.array(step.query_lens, np.int64),
            np.array(step.samples, np.bool_),
        )

    @property
    def ends(self) -> NDArray[np.int64]:
        return self.starts + self.query_lens

    @cached_property
    def sampling(self) -> SamplingRows:
        (indices,) = self.samples.nonzero()
        return SamplingRows(indices, self.slots[indices], self.ends[indices])


class BatchBuffers:
    """A batch's tensors at fixed addresses, filled anew for each step without a loop over sequences, and sent with one copy."""

    def __init__(
        self, max_tokens: int, max_seqs: int, max_blocks: int, block_size: int, device: torch.device, *, draws: bool = False
    ) -> None:
        """`draws`: whether passes draw their tokens themselves, so that their batches say how. There are as many slots as sequences."""
        self._block_size = block_size
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "counts": ((3,), torch.int32),
            "query_start_loc": ((max_seqs + 1,), torch.int32),
            "seq_lens": ((max_seqs,), torch.int32),
            "draw_settings": ((max_seqs, NUM_WORDS), torch.int64),
            "draw_slots": ((max_seqs,), torch.int32),
            "token_ids": ((max_tokens,), torch.int32),
            "positions": ((max_tokens,), torch.int32),
            "slot_mapping": ((max_tokens,), torch.int64),
            "logits_indices": ((max_seqs + max_tokens,), torch.int32),
            "block_tables": ((max_seqs, max_blocks), torch.int32),  # last, as most of it is rarely sent
        }
        self._inputs = PackedInputs(shapes, device, copies=device.type != "cpu")
        # The tensors of the latest batch. While sequences only decode, the next one has the same.
        self._sizes: tuple[int, int, int] | None = None
        self._views: dict[str, torch.Tensor] = {}
        self.draws: Draws | None = None
        if draws:
            self.draws = Draws(
                counts=self._inputs.tensors["counts"],
                settings=self._inputs.tensors["draw_settings"],
                slots=self._inputs.tensors["draw_slots"],
                token_ids=torch.zeros(max_seqs, dtype=torch.int64, device=device),
                last_token_ids=torch.zeros(max_seqs, dtype=torch.int32, device=device),
            )
        # A view of everything, for recording: the longest query is all tokens, the longest sequence all blocks.
        self.capacity = self._batch(max_tokens, max_seqs, max_seqs, max_tokens, max_blocks * block_size)

    def fill(
        self,
        tables: SlotTables,
        step: StepArrays,
        prompt_rows: NDArray[np.int64] | None = None,
        draw_settings: DrawSettings | None = None,
        *,
        draws_in_pass: bool = True,
    ) -> Batch:
        """The batch of one step. Logits are wanted of each sampling sequence's last token, then of `prompt_rows` (rows of the batch).

        `draw_settings` are those of the sampling sequences, whose tokens the pass draws with `draws_in_pass`; without them none is drawn.
        """
        arrays, block_size = self._inputs.arrays(), self._block_size
        num_seqs = len(step.slots)
        query_start_loc = arrays["query_start_loc"][: num_seqs + 1]
        step.query_lens.cumsum(out=query_start_loc[1:])
        num_tokens = int(query_start_loc[-1])
        decodes_only = num_tokens == num_seqs
        if decodes_only:
            slot_of_token, positions = step.slots, step.starts
        else:
            slot_of_token = step.slots.repeat(step.query_lens)
            positions = np.arange(num_tokens) - (query_start_loc[:-1] - step.starts).repeat(step.query_lens)
        block_ids = tables.block_tables[slot_of_token, positions // block_size].astype(np.int64)
        arrays["positions"][:num_tokens] = positions
        arrays["token_ids"][:num_tokens] = tables.token_ids[slot_of_token, positions]
        arrays["slot_mapping"][:num_tokens] = block_ids * block_size + positions % block_size

        ends = step.ends
        arrays["seq_lens"][:num_seqs] = ends
        max_seq_len = int(ends.max())
        num_blocks = -(-max_seq_len // block_size)
        arrays["block_tables"][:num_seqs, :num_blocks] = tables.block_tables[step.slots, :num_blocks]

        sampled_rows = query_start_loc[1:][step.samples] - 1
        num_logits = num_sampled = len(sampled_rows)
        arrays["logits_indices"][:num_logits] = sampled_rows
        if prompt_rows is not None:
            arrays["logits_indices"][num_logits : num_logits + len(prompt_rows)] = prompt_rows
            num_logits += len(prompt_rows)
        if self.draws is not None:
            arrays["counts"][:] = num_seqs, num_logits, num_sampled if draws_in_pass and draw_settings is not None else 0
            if draw_settings is not None:
                draw_settings.pack(arrays["draw_settings"][:num_sampled])
                arrays["draw_slots"][:num_sampled] = step.sampling.slots
        self._inputs.send("block_tables", num_seqs)
        return self._batch(num_tokens, num_seqs, num_logits, 1 if decodes_only else int(step.query_lens.max()), max_seq_len)

    def _batch(self, num_tokens: int, num_seqs: int, num_logits: int, max_query_len: int, max_seq_len: int) -> Batch:
        sizes = num_tokens, num_seqs, num_logits
        if sizes != self._sizes:
            tensors = self._inputs.tensors
            self._sizes = sizes
            self._views = {
                "token_ids": tensors["token_ids"][:num_tokens],
                "positions": tensors["positions"][:num_tokens],
                "slot_mapping": tensors["slot_mapping"][:num_tokens],
                "query_start_loc": tensors["query_start_loc"][: num_seqs + 1],
                "seq_lens": tensors["seq_lens"][:num_seqs],
                "block_tables": tensors["block_tables"][:num_seqs],
                "logits_indices": tensors["logits_indices"][:num_logits],
            }
        return Batch(num_tokens, num_seqs, max_query_len, max_seq_len, **self._views, draws=self.draws)

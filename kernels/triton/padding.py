"""Rows of a decode batch that stand for no sequence: they read and write nothing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.batch import Batch


def pad_decodes(batch: Batch, counts: torch.Tensor) -> None:
    """Make padding of the rows behind the real ones; counts is [3] int32 on the device, that of `Draws`.

    A padding row has a sequence of length zero, whose attention is zeros, and a slot that is negative, so that no key is stored. Its
    logits are computed and belong to nobody.
    """
    pad_decodes_kernel[(1,)](
        batch.token_ids,
        batch.positions,
        batch.slot_mapping,
        batch.query_start_loc,
        batch.seq_lens,
        batch.logits_indices,
        counts,
        batch.num_seqs,
        SIZE_PAD=triton.next_power_of_2(batch.num_seqs),
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["size"])
def pad_decodes_kernel(
    token_ids_ptr,  # [size] int32
    positions_ptr,  # [size] int32
    slot_mapping_ptr,  # [size] int64
    query_start_loc_ptr,  # [size + 1] int32
    seq_lens_ptr,  # [size] int32
    logits_indices_ptr,  # [size] int32
    counts_ptr,  # [3] int32: real sequences, logits that are wanted, and what does not matter here
    size,
    SIZE_PAD: tl.constexpr,  # a power of two, at least size
):
    """One program: grid (1)."""
    rows = tl.arange(0, SIZE_PAD)
    num_seqs, num_logits = tl.load(counts_ptr), tl.load(counts_ptr + 1)
    padding = (rows >= num_seqs) & (rows < size)
    zeros = tl.zeros([SIZE_PAD], tl.int32)
    tl.store(token_ids_ptr + rows, zeros, mask=padding)
    tl.store(positions_ptr + rows, zeros, mask=padding)
    tl.store(slot_mapping_ptr + rows, zeros.to(tl.int64) - 1, mask=padding)
    tl.store(query_start_loc_ptr + rows + 1, rows + 1, mask=padding)
    tl.store(seq_lens_ptr + rows, zeros, mask=padding)
    tl.store(logits_indices_ptr + rows, zeros, mask=(rows >= num_logits) & (rows < size))

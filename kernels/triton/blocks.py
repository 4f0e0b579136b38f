"""Copies of whole cache blocks: inside the pool for copy-on-write, and between the pool and the buffer through which blocks are swapped."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CHUNK_BYTES = 8192  # that a program copies


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """source and target [num_blocks, ...], pairs [P, 2] int64; the contract is `Ops.copy_blocks`."""
    num_pairs = pairs.shape[0]
    if num_pairs == 0:
        return
    elements = source[0].numel()
    chunk = min(CHUNK_BYTES // source.element_size(), triton.next_power_of_2(elements))
    copy_blocks_kernel[(num_pairs, triton.cdiv(elements, chunk))](
        source,
        target,
        pairs,
        source.stride(0),
        target.stride(0),
        pairs.stride(0),
        ELEMENTS=elements,
        CHUNK=chunk,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit
def copy_blocks_kernel(
    source_ptr,
    target_ptr,
    pairs_ptr,  # [P, 2] int64 of (block of the source, block of the target)
    source_stride,
    target_stride,
    pair_stride,
    ELEMENTS: tl.constexpr,  # of one block
    CHUNK: tl.constexpr,
):
    """One program per pair and chunk of a block: grid (P, cdiv(ELEMENTS, CHUNK))."""
    pair_ptr = pairs_ptr + tl.program_id(0) * pair_stride
    source_ptr += tl.load(pair_ptr).to(tl.int64) * source_stride
    target_ptr += tl.load(pair_ptr + 1).to(tl.int64) * target_stride
    elements = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = elements < ELEMENTS
    tl.store(target_ptr + elements, tl.load(source_ptr + elements, mask=inside), mask=inside)

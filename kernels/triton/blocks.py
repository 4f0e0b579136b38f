"""Copies of whole cache blocks, for copy-on-write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def copy_blocks(pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """pool [num_blocks, ...] in place, pairs [P, 2] int64; the contract is `Ops.copy_blocks`."""
    num_pairs = pairs.shape[0]
    if num_pairs == 0:
        return
    elements = pool[0].numel()
    chunk = min(4096, triton.next_power_of_2(elements))
    copy_blocks_kernel[(num_pairs, triton.cdiv(elements, chunk))](
        pool, pairs, pool.stride(0), pairs.stride(0), ELEMENTS=elements, CHUNK=chunk, num_warps=4, enable_fp_fusion=True
    )


@triton.jit
def copy_blocks_kernel(
    kv_cache_ptr,
    pairs_ptr,  # [P, 2] int64 of (source, destination)
    block_stride,
    pair_stride,
    ELEMENTS: tl.constexpr,  # of one block
    CHUNK: tl.constexpr,
):
    """One program per pair and chunk of a block: grid (P, cdiv(ELEMENTS, CHUNK))."""
    pair_ptr = pairs_ptr + tl.program_id(0) * pair_stride
    source = tl.load(pair_ptr).to(tl.int64) * block_stride
    destination = tl.load(pair_ptr + 1).to(tl.int64) * block_stride
    elements = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = elements < ELEMENTS
    tl.store(kv_cache_ptr + destination + elements, tl.load(kv_cache_ptr + source + elements, mask=inside), mask=inside)

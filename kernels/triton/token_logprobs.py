"""Log probabilities of chosen tokens and their ranks: one program a row, in two passes over its logits."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from kernels.reference.logprobs import assemble
from kernels.sampling import RowLogprobs
from kernels.triton.sampling import TILE, find_largest


def logprobs(logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
    """logits [R, vocab_size] float32; the contract is `Ops.logprobs`. Waits for the device, as the result is wanted on the host."""
    num_rows, vocab_size = logits.shape
    normalizers = torch.empty((num_rows, 1), dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    index = torch.from_numpy(token_ids).to(logits.device, non_blocking=True)
    tile = min(TILE, triton.next_power_of_2(vocab_size))
    logprobs_kernel[(num_rows,)](
        normalizers,
        ranks,
        logits,
        index,
        logits.stride(0),
        N=vocab_size,
        TILE=tile,
        num_warps=min(16, max(4, tile // 256)),
        enable_fp_fusion=False,
    )
    return assemble(logits, normalizers, index, ranks, num_top)


@triton.jit
def logprobs_kernel(
    normalizers_ptr,  # [R] float32: log of the sum of exp(logit - largest); NaN where the largest is not finite or one is NaN
    ranks_ptr,  # [R] int64
    logits_ptr,  # [R, N] float32
    token_ids_ptr,  # [R] int64
    logits_stride,
    N: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: grid (R). The sum is one of integers in units of 2**-40, so its order cannot matter."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    places = tl.arange(0, TILE)
    largest, _, is_number = find_largest(logits_ptr, N, TILE)
    chosen = tl.load(logits_ptr + tl.load(token_ids_ptr + row))
    total = tl.zeros([TILE], tl.int64)
    rank = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, N, TILE):
        logits = tl.load(logits_ptr + start + places, mask=start + places < N, other=float("-inf"))
        total += (tl.exp(logits - largest) * 1099511627776.0).to(tl.int64)
        rank += (logits > chosen).to(tl.int32)
    log_total = tl.log(tl.sum(total, 0).to(tl.float64) * (1.0 / 1099511627776.0)).to(tl.float32)
    tl.store(normalizers_ptr + row, tl.where(is_number, log_total, float("nan")))
    tl.store(ranks_ptr + row, tl.sum(rank, 0).to(tl.int64) + 1)

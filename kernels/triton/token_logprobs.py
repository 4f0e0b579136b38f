"""Log probabilities of chosen tokens and their ranks, and the most probable tokens: no sort and no top-k of the vocabulary.

One program a row sums the probabilities, finds the n-th largest logit by counting (as `sampling.py` does), and collects what reaches it, in
the order of tokens. A second kernel then places each of these few: behind as many as are larger, or equal and earlier.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from kernels.sampling import RowLogprobs
from kernels.triton.sampling import TILE, find_largest, kth_largest

ORDERED = 32  # collected tokens that one program places


def logprobs(logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
    """logits [R, vocab_size] float32; the contract is `Ops.logprobs`. Waits for the device, as the result is wanted on the host."""
    num_rows, vocab_size = logits.shape
    most = int(num_top.max(initial=0))
    wanted = torch.from_numpy(np.stack((token_ids, num_top.astype(np.int64)), axis=1)).to(logits.device, non_blocking=True)
    # All in one array, so that one copy takes it to the host; floats keep their bits.
    result = torch.empty((num_rows, 2 + 3 * most), dtype=torch.int32, device=logits.device)
    row_stats = torch.empty((num_rows, 2), dtype=torch.float32, device=logits.device)
    found_ids = torch.empty((num_rows, most), dtype=torch.int32, device=logits.device)
    found_logits = torch.empty((num_rows, most), dtype=torch.float32, device=logits.device)
    tile = min(TILE, triton.next_power_of_2(vocab_size))
    logprobs_kernel[(num_rows,)](
        result,
        row_stats,
        found_ids,
        found_logits,
        logits,
        wanted,
        logits.stride(0),
        most,
        N=vocab_size,
        TILE=tile,
        num_warps=min(16, max(4, tile // 256)),
        enable_fp_fusion=False,
    )
    if most:
        order_top_kernel[(num_rows, triton.cdiv(most, ORDERED))](
            result, row_stats, found_ids, found_logits, wanted, most, ROWS=ORDERED, COLUMNS=128, num_warps=4, enable_fp_fusion=False
        )
    words = result.cpu().numpy()
    ids, ranks, values = (words[:, 2 + i * most : 2 + (i + 1) * most] for i in range(3))
    return RowLogprobs(words[:, 0].view(np.float32), words[:, 1].astype(np.int64), ids, ranks, values.view(np.float32))


@triton.jit(do_not_specialize=["most"])
def logprobs_kernel(
    result_ptr,  # [R, 2 + 3 * most] int32: bits of the token's log probability, its rank
    row_stats_ptr,  # [R, 2] float32: the largest logit, and the log of the sum of exp(logit - largest)
    found_ids_ptr,  # [R, most] int32: the most probable tokens, in the order of tokens
    found_logits_ptr,  # [R, most] float32
    logits_ptr,  # [R, N] float32
    wanted_ptr,  # [R, 2] int64: the token, and how many of the most probable ones
    logits_stride,
    most,
    N: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: grid (R). The sum is one of integers in units of 2**-40, so its order cannot matter.

    A row with a NaN, or whose largest logit is not finite, is computed as if all were equal, and then all are NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    places = tl.arange(0, TILE)
    largest, _, is_number = find_largest(logits_ptr, N, TILE)
    largest = tl.where(is_number, largest, 0.0)
    chosen = tl.where(is_number, tl.load(logits_ptr + tl.load(wanted_ptr + row * 2)), 0.0)
    total = tl.zeros([TILE], tl.int64)
    rank = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, N, TILE):
        logits = load_logits(logits_ptr, start + places, is_number, N)
        total += (tl.exp(logits - largest) * 1099511627776.0).to(tl.int64)
        rank += (logits > chosen).to(tl.int32)
    log_total = tl.log(tl.sum(total, 0).to(tl.float64) * (1.0 / 1099511627776.0)).to(tl.float32)
    log_total = tl.where(is_number, log_total, float("nan"))
    tl.store(row_stats_ptr + row * 2, largest)
    tl.store(row_stats_ptr + row * 2 + 1, log_total)
    result_ptr += row * (2 + 3 * most)
    tl.store(result_ptr, (chosen - largest - log_total).to(tl.int32, bitcast=True))
    tl.store(result_ptr + 1, tl.sum(rank, 0) + 1)
    num_top = tl.load(wanted_ptr + row * 2 + 1).to(tl.int32)
    if num_top > 0:
        collect_top(found_ids_ptr + row * most, found_logits_ptr + row * most, logits_ptr, num_top, largest, is_number, N, TILE)


@triton.jit
def collect_top(ids_ptr, found_ptr, logits_ptr, num_top, largest, is_number, N: tl.constexpr, TILE: tl.constexpr):
    """Store the num_top largest logits and their tokens, in the order of tokens; of equals of the least, the first."""
    places = tl.arange(0, TILE)
    least = largest
    if is_number:
        least = kth_largest(logits_ptr, num_top, largest, N, TILE)
    above = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, N, TILE):
        above += (load_logits(logits_ptr, start + places, is_number, N) > least).to(tl.int32)
    num_equals = num_top - tl.sum(above, 0)  # that are taken
    num_found, equals_seen = num_top * 0, num_top * 0
    for start in tl.range(0, N, TILE):
        ids = start + places
        logits = load_logits(logits_ptr, ids, is_number, N)
        reaches = (ids < N) & (logits >= least)
        if tl.sum(reaches.to(tl.int32), 0) > 0:
            is_equal = (reaches & (logits == least)).to(tl.int32)
            taken = reaches & ((logits > least) | (equals_seen + tl.cumsum(is_equal, 0) <= num_equals))
            order = num_found + tl.cumsum(taken.to(tl.int32), 0) - 1
            tl.store(ids_ptr + order, ids, mask=taken)
            tl.store(found_ptr + order, logits, mask=taken)
            num_found += tl.sum(taken.to(tl.int32), 0)
            equals_seen += tl.sum(is_equal, 0)


@triton.jit
def load_logits(logits_ptr, ids, is_number, N: tl.constexpr):
    """-inf behind the vocabulary; zeros for a row whose logits are no numbers."""
    logits = tl.load(logits_ptr + ids, mask=ids < N, other=float("-inf"))
    return tl.where(is_number | (ids >= N), logits, 0.0)


@triton.jit(do_not_specialize=["most"])
def order_top_kernel(
    result_ptr,  # [R, 2 + 3 * most] int32: behind two words, the tokens, their ranks, and the bits of their log probabilities
    row_stats_ptr,  # [R, 2] float32
    found_ids_ptr,  # [R, most] int32
    found_logits_ptr,  # [R, most] float32
    wanted_ptr,  # [R, 2] int64
    most,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """ROWS of the collected tokens of a row per program: grid (R, cdiv(most, ROWS)). Each is compared with all."""
    row = tl.program_id(0).to(tl.int64)
    num_top = tl.load(wanted_ptr + row * 2 + 1).to(tl.int32)
    own = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    found_ids_ptr += row * most
    found_logits_ptr += row * most
    logits = tl.load(found_logits_ptr + own, mask=own < num_top, other=0.0)
    larger = tl.zeros([ROWS, COLUMNS], tl.int32)
    equals = tl.zeros([ROWS, COLUMNS], tl.int32)  # that come earlier
    for start in tl.range(0, num_top, COLUMNS):
        others = start + tl.arange(0, COLUMNS)
        compared = tl.load(found_logits_ptr + others, mask=others < num_top, other=float("-inf"))
        larger += (compared[None, :] > logits[:, None]).to(tl.int32)
        equals += ((compared[None, :] == logits[:, None]) & (others[None, :] < own[:, None])).to(tl.int32)
    rank = tl.sum(larger, 1)
    place = rank + tl.sum(equals, 1)
    value = logits - tl.load(row_stats_ptr + row * 2) - tl.load(row_stats_ptr + row * 2 + 1)
    result_ptr += row * (2 + 3 * most) + 2
    tl.store(result_ptr + place, tl.load(found_ids_ptr + own, mask=own < num_top, other=0), mask=own < num_top)
    tl.store(result_ptr + most + place, rank + 1, mask=own < num_top)
    tl.store(result_ptr + 2 * most + place, value.to(tl.int32, bitcast=True), mask=own < num_top)

"""Drawing the token of each row of logits: one program a row, thresholds by search and not by sorting, sums of integers.

A vocabulary is too long for a program's registers, but it lies in the L2 cache, and reading it a few dozen times is far cheaper than
sorting it. The k-th largest logit, and the least weight of a nucleus, are the largest numbers at which a count or a sum still reaches what
is asked for: both are found by dividing the range of float32's bit patterns, whose order is the numbers' own, into quarters. Weights are
rounded to integers, so sums are exact, and no order of addition can change a draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from kernels.sampling import NUM_WORDS, Draws, DrawSettings
from kernels.triton.philox import uniform

TILE = 4096  # logits that a program holds at a time


def sample(logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
    """logits [R, vocab_size] -> [R]; the contract is `Ops.sample`. Waits for the device, as the tokens are wanted on the host."""
    num_rows = logits.shape[0]
    words = np.empty((num_rows, NUM_WORDS), np.int64)
    settings.pack(words)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    on_device = torch.from_numpy(words).to(logits.device, non_blocking=True)
    sample_kernel[(num_rows,)](token_ids, logits, on_device, logits.stride(0), **_constants(logits))
    return token_ids.cpu().numpy()


def draw(logits: torch.Tensor, draws: Draws) -> None:
    """logits [R, vocab_size] of any float type; the contract is `DrawingOps.draw`."""
    draw_kernel[(logits.shape[0],)](
        draws.token_ids,
        draws.last_token_ids,
        logits,
        draws.settings,
        draws.slots,
        draws.counts,
        logits.stride(0),
        **_constants(logits),
    )


def _constants(logits: torch.Tensor) -> dict[str, Any]:
    vocab_size = logits.shape[1]
    tile = min(TILE, triton.next_power_of_2(vocab_size))
    return {"N": vocab_size, "TILE": tile, "num_warps": min(16, max(4, tile // 256)), "enable_fp_fusion": False}


@triton.jit
def sample_kernel(
    token_ids_ptr,  # [R] int64
    logits_ptr,  # [R, N]
    settings_ptr,  # [R, 7] int64, `DrawSettings.pack`
    logits_stride,
    N: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: grid (R)."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(token_ids_ptr + row, choose(logits_ptr + row * logits_stride, settings_ptr + row * 7, N, TILE))


@triton.jit
def draw_kernel(
    token_ids_ptr,  # [R] int64
    last_token_ids_ptr,  # [num_slots] int32
    logits_ptr,  # [R, N]
    settings_ptr,  # [R, 7] int64, `DrawSettings.pack`
    slots_ptr,  # [R] int32
    counts_ptr,  # [3] int32, the last one of which is the number of rows to draw from
    logits_stride,
    N: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: grid (R). Rows behind those that are drawn from end at once."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(counts_ptr + 2):
        token_id = choose(logits_ptr + row * logits_stride, settings_ptr + row * 7, N, TILE)
        tl.store(token_ids_ptr + row, token_id)
        tl.store(last_token_ids_ptr + tl.load(slots_ptr + row), tl.maximum(token_id, 0).to(tl.int32))


@triton.jit
def choose(logits_ptr, settings_ptr, N: tl.constexpr, TILE: tl.constexpr):
    """The token of a row, -1 for none: int64."""
    largest, token_id, is_number = find_largest(logits_ptr, N, TILE)
    temperature = tl.load(settings_ptr).to(tl.float64, bitcast=True).to(tl.float32)
    if is_number:
        if temperature > 0.0:
            token_id = draw_from(logits_ptr, settings_ptr, largest, temperature, N, TILE)
    else:
        token_id = token_id * 0 - 1
    return token_id


@triton.jit
def load_logits(logits_ptr, places, N: tl.constexpr):
    """The logits at these places, widened to float32; -inf behind the last."""
    return tl.load(logits_ptr + places, mask=places < N, other=float("-inf")).to(tl.float32)


@triton.jit
def find_largest(logits_ptr, N: tl.constexpr, TILE: tl.constexpr):
    """-> (largest logit, the first token that has it, whether it is finite and no logit is NaN)."""
    places = tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_ids = places
    num_nans = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, N, TILE):
        logits = load_logits(logits_ptr, start + places, N)
        num_nans += (logits != logits).to(tl.int32)
        better = logits > best
        best = tl.where(better, logits, best)
        best_ids = tl.where(better, start + places, best_ids)
    largest = tl.max(best, 0)
    token_id = tl.min(tl.where(best == largest, best_ids, N), 0).to(tl.int64)
    return largest, token_id, (tl.sum(num_nans, 0) == 0) & (tl.abs(largest) < float("inf"))


@triton.jit
def draw_from(logits_ptr, settings_ptr, largest, temperature, N: tl.constexpr, TILE: tl.constexpr):
    """The token of a row that is not greedy."""
    log_min_p = tl.load(settings_ptr + 1).to(tl.float64, bitcast=True).to(tl.float32)
    top_p = tl.load(settings_ptr + 2).to(tl.float64, bitcast=True)
    top_k = tl.load(settings_ptr + 3)
    top = tl.div_rn(largest, temperature)
    least = top + log_min_p  # of the tempered logits that are kept; -inf keeps all
    if (top_k > 0) & (top_k < N):
        # Of the logits themselves: division by the temperature keeps their order.
        least = tl.maximum(least, tl.div_rn(kth_largest(logits_ptr, top_k, largest, N, TILE), temperature))
    total, _, _ = sums_from(logits_ptr, temperature, top, least, 1.0, 1.0, 1.0, N, TILE)
    least_weight = top * 0.0 + 1.0
    if top_p < 1.0:
        least_weight = nucleus_threshold(logits_ptr, temperature, top, least, total.to(tl.float64) * top_p, N, TILE)
        total, _, _ = sums_from(logits_ptr, temperature, top, least, least_weight, least_weight, least_weight, N, TILE)
    number = uniform(tl.load(settings_ptr + 4), tl.load(settings_ptr + 5), tl.load(settings_ptr + 6))
    return invert_cdf(logits_ptr, temperature, top, least, least_weight, total, number, N, TILE)


@triton.jit
def kth_largest(logits_ptr, k, largest, N: tl.constexpr, TILE: tl.constexpr):
    """The largest number that at least k logits reach."""
    places = tl.arange(0, TILE)
    low, high = to_key(largest * 0.0 - float("inf")), to_key(largest)
    while low < high:
        step = (high - low) // 4 + 1
        first, second, third = from_key(low + step), from_key(low + 2 * step), from_key(low + 3 * step)
        counts = (tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32))
        for start in tl.range(0, N, TILE):
            logits = load_logits(logits_ptr, start + places, N)
            counts = (
                counts[0] + (logits >= first).to(tl.int32),
                counts[1] + (logits >= second).to(tl.int32),
                counts[2] + (logits >= third).to(tl.int32),
            )
        low, high = narrowed(low, high, step, tl.sum(counts[0], 0) >= k, tl.sum(counts[1], 0) >= k, tl.sum(counts[2], 0) >= k)
    return from_key(low)


@triton.jit
def nucleus_threshold(logits_ptr, temperature, top, least, needed, N: tl.constexpr, TILE: tl.constexpr):
    """The largest weight such that the weights from it up come to what is needed (Holtzman et al., 2020, section 3.1)."""
    low, high = to_key(top * 0.0 + 1.0), to_key(top * 0.0 + 17179869184.0)  # weights are integers up to 2**34
    while low < high:
        step = (high - low) // 4 + 1
        first, second, third = sums_from(
            logits_ptr, temperature, top, least, from_key(low + step), from_key(low + 2 * step), from_key(low + 3 * step), N, TILE
        )
        low, high = narrowed(
            low, high, step, first.to(tl.float64) >= needed, second.to(tl.float64) >= needed, third.to(tl.float64) >= needed
        )  # fmt: skip
    return from_key(low)


@triton.jit
def narrowed(low, high, step, first, second, third):
    """The quarter of [low, high] that holds the last key that reaches, given whether low + step, + 2 * step and + 3 * step do."""
    reached = (first & (low + step <= high)).to(tl.int64)
    reached += (second & (low + 2 * step <= high)).to(tl.int64)
    reached += (third & (low + 3 * step <= high)).to(tl.int64)
    return low + reached * step, tl.minimum(high, low + (reached + 1) * step - 1)


@triton.jit
def to_key(number):
    """An integer for a float32, ordered as the floats are."""
    bits = number.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def from_key(key):
    """The float32 of a key; any number for a key that no float32 has."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weigh(logits, temperature, top, least):
    """exp(logit / temperature - top) in units of 2**-34, rounded to the even integer; zero for what is filtered. float32."""
    tempered = tl.div_rn(logits, temperature)
    weights = tl.exp(tempered - top) * 17179869184.0
    # Adding 2**23 to a smaller number leaves no bits for a fraction; larger ones have none.
    rounded = tl.where(weights < 8388608.0, (weights + 8388608.0) - 8388608.0, weights)
    return tl.where(tempered >= least, rounded, 0.0)


@triton.jit
def sums_from(logits_ptr, temperature, top, least, first, second, third, N: tl.constexpr, TILE: tl.constexpr):
    """The sums of the weights that are at least first, second and third: int64, exact up to 2**19 tokens."""
    places = tl.arange(0, TILE)
    sums = (top.to(tl.int64) * 0, top.to(tl.int64) * 0, top.to(tl.int64) * 0)
    for start in tl.range(0, N, TILE):
        logits = load_logits(logits_ptr, start + places, N)
        weights = weigh(logits, temperature, top, least)
        integers = weights.to(tl.int64)
        sums = (
            sums[0] + tl.sum(tl.where(weights >= first, integers, 0), 0),
            sums[1] + tl.sum(tl.where(weights >= second, integers, 0), 0),
            sums[2] + tl.sum(tl.where(weights >= third, integers, 0), 0),
        )
    return sums


@triton.jit
def invert_cdf(logits_ptr, temperature, top, least, least_weight, total, number, N: tl.constexpr, TILE: tl.constexpr):
    """The first token at which the sum of weights so far, in the order of tokens, exceeds number * total."""
    places = tl.arange(0, TILE)
    target = number * total.to(tl.float64)
    running, before, first = total * 0, total * 0, total.to(tl.int32) * 0 - 1
    for start in tl.range(0, N, TILE):
        logits = load_logits(logits_ptr, start + places, N)
        weights = weigh(logits, temperature, top, least)
        after = running + tl.sum(tl.where(weights >= least_weight, weights.to(tl.int64), 0), 0)
        # A product that was rounded up to the total: the last token that has a weight.
        is_here = (first < 0) & ((after.to(tl.float64) > target) | (after == total))
        before = tl.where(is_here, running, before)
        first = tl.where(is_here, start, first)
        running = after
    logits = load_logits(logits_ptr, first + places, N)
    weights = weigh(logits, temperature, top, least)
    cumulative = before + tl.cumsum(tl.where(weights >= least_weight, weights.to(tl.int64), 0), 0)
    is_past = (cumulative.to(tl.float64) > target) | (cumulative == total)
    return tl.min(tl.where(is_past, first + places, N), 0).to(tl.int64)

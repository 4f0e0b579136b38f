"""Products with weights of 4 or 8 bits in groups, which stay so in memory: they are widened in registers, on their way to the tensor cores.

The product is computed transposed, weights times activations: output features are the long side of a tile for one row as for many, and a
widened weight is where sm_90's instruction (wgmma) wants its first operand. A group of input features is one step of the sum, so its
scale is one number for each output feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.tuning import Tiles, tiles_for
from kernels.weights import QuantizedWeight

FLOAT32_TILES = Tiles(32, 64, 4, 2)  # for activations of float32: no tensor cores, and twice the shared memory
FEW_ROWS = 64  # which wait for the weights alone
ENOUGH_PROGRAMS = 512  # of one product: several for each processor of a large GPU
MOST_PARTS = 8  # of a sum over K
PART_COLUMNS = 512  # outputs that one program adds the parts of
GROUPS = (64, 32, 16)  # input features that a kernel takes at a step; larger groups are divided


@dataclass(frozen=True)
class GroupedCodes:
    """Groups are taken in pairs, as two scales of 16 bits make a word: less than a word is copied to shared memory by no instruction."""

    codes: torch.Tensor  # uint8, [N, pairs * group_size] of nibbles, the low halves the first group's; or [N, pairs * 2 * group_size]
    factors: torch.Tensor  # int32, [pairs, words, N]: two scales, and two minimums; as float16 in one word, else as float32 in two
    group_size: int
    offset: int  # taken from each stored code
    in_features: int
    is_nibbles: bool  # whether two codes share a byte
    is_half: bool  # whether scales and minimums are float16, which is so where that is exact enough
    has_mins: bool


def pack_grouped(weight: QuantizedWeight, device: torch.device, dtype: torch.dtype) -> GroupedCodes | None:
    """The form that the kernel reads for activations of `dtype`, or None for groups that it does not know (no multiple of 16)."""
    group_size = next((size for size in GROUPS if weight.group_size % size == 0), None)
    if group_size is None:
        return None
    repeat = weight.group_size // group_size
    codes, factors = weight.codes.to(device), [weight.scales] if weight.mins is None else [weight.scales, weight.mins]
    factors = [values.to(device).float().repeat_interleave(repeat, dim=1).t() for values in factors]
    if factors[0].shape[0] % 2:  # the last one's partner: weights of zero
        codes = torch.nn.functional.pad(codes, (0, group_size))
        factors = [torch.nn.functional.pad(values, (0, 0, 0, 1)) for values in factors]
    offset = 1 << (weight.bits - 1) if weight.signed else 0
    codes = (codes.to(torch.int16) + offset).to(torch.uint8)
    is_nibbles = weight.bits <= 4
    if is_nibbles:
        pairs = codes.view(len(codes), -1, 2, group_size)
        codes = (pairs[:, :, 0] | pairs[:, :, 1] << 4).view(len(codes), -1)
    is_half = all(_fits_half(values, dtype) for values in factors)
    words = torch.cat([_as_words(values, is_half) for values in factors], dim=1).contiguous()
    return GroupedCodes(
        codes.contiguous(), words, group_size, offset, weight.shape[1], is_nibbles, is_half, has_mins=weight.mins is not None
    )  # fmt: skip


def _fits_half(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether float16 keeps more of each than activations of `dtype` hold; quantised files store such, or products of two."""
    tolerance = 0.0 if dtype == torch.float32 else 2.0**-11
    return bool(((values.half().float() - values).abs() <= values.abs() * tolerance).all())


def _as_words(values: torch.Tensor, is_half: bool) -> torch.Tensor:
    """[groups, N] -> int32 [pairs, 1 or 2, N]."""
    pairs = values.unflatten(0, (-1, 2))
    if not is_half:
        return pairs.contiguous().view(torch.int32)
    return torch.stack((pairs[:, 0], pairs[:, 1]), dim=-1).half().view(torch.int32).squeeze(-1).unsqueeze(1)


def _from_words(words: torch.Tensor, is_half: bool) -> torch.Tensor:
    """The inverse: float32 [groups, N]."""
    if not is_half:
        return words.contiguous().view(torch.float32).flatten(0, 1)
    pairs = words.squeeze(1).contiguous().view(torch.float16).unflatten(-1, (-1, 2))  # [pairs, N, 2]
    return pairs.float().transpose(1, 2).flatten(0, 1)


def unpack_rows(weight: GroupedCodes, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weights of some output features: [R] -> [R, in_features]."""
    codes = weight.codes[rows]
    if weight.is_nibbles:
        codes = torch.stack((codes.view(len(rows), -1, weight.group_size) & 15, codes.view(len(rows), -1, weight.group_size) >> 4), dim=2)
    factors = weight.factors[:, :, rows]
    scales, *mins = (_from_words(part, weight.is_half).t().unsqueeze(-1) for part in factors.chunk(2 if weight.has_mins else 1, dim=1))
    values = (codes.reshape(len(rows), -1, weight.group_size).float() - weight.offset) * scales
    if mins:
        values = values + mins[0]
    return values.reshape(len(rows), -1)[:, : weight.in_features].to(dtype)


def quantized_matmul(
    x: torch.Tensor, weight: GroupedCodes, bias: torch.Tensor | None, *, deterministic: bool = False, tiles: Tiles | None = None
) -> torch.Tensor:
    """x @ weight.T + bias: x [T, K], bias [N] or None -> [T, N]; weights are rounded to the type of x, sums are of float32.

    With `deterministic` the tile does not depend on T, so a row of the result has the same bits whatever the other rows are.
    `tiles` are those of the table unless given; float32 has its own.
    """
    num_rows, num_columns = x.shape[0], weight.codes.shape[0]
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    if x.dtype == torch.float32:
        tiles = FLOAT32_TILES
    tiles = tiles or tiles_for("quantized_matmul", x.device, None if deterministic else num_rows)
    row_tiles, column_tiles = triton.cdiv(num_rows, tiles.rows), triton.cdiv(num_columns, tiles.columns)
    # Parts are another order of addition, and of many rows none are wanted: `deterministic` does without.
    num_parts = 1 if deterministic or num_rows > FEW_ROWS else count_parts(column_tiles, len(weight.factors))
    sums = out if num_parts == 1 else torch.empty((num_parts, num_rows, num_columns), dtype=torch.float32, device=x.device)
    # One row's tiles lie side by side, so that those of other rows find the weights in the L2 cache.
    quantized_matmul_kernel[(row_tiles, column_tiles, num_parts)](
        sums,
        x,
        weight.codes,
        weight.factors,
        weight.factors if bias is None else bias,
        x.stride(0),
        num_rows,
        N=num_columns,
        K=weight.in_features,
        NUM_PAIRS=weight.factors.shape[0],
        GROUP=weight.group_size,
        NIBBLES=weight.is_nibbles,
        OFFSET=weight.offset,
        IS_HALF=weight.is_half,
        HAS_MINS=weight.has_mins,
        HAS_BIAS=bias is not None and num_parts == 1,
        PARTS=num_parts,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        # Shared memory has room for three programs; ptxas would spill a few bytes to fit a fifth.
        maxnreg=168 if tiles.num_warps == 4 else None,
        enable_fp_fusion=False,
    )
    if num_parts > 1:
        add_parts_kernel[(num_rows, triton.cdiv(num_columns, PART_COLUMNS))](
            out, sums, sums if bias is None else bias, num_rows, N=num_columns, PARTS=num_parts, HAS_BIAS=bias is not None,
            COLUMNS=PART_COLUMNS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def count_parts(num_tiles: int, num_pairs: int) -> int:
    """In how many parts the sum over K is cut, a power of two: few outputs are few tiles, too few to keep a large GPU's memory busy."""
    num_parts = 1
    while num_parts < MOST_PARTS and num_tiles * num_parts < ENOUGH_PROGRAMS and num_pairs >= 8 * num_parts:
        num_parts *= 2
    return num_parts


@triton.jit(do_not_specialize=["num_rows"])
def add_parts_kernel(
    out_ptr,  # [T, N]
    sums_ptr,  # [PARTS, T, N] float32
    bias_ptr,  # [N], read when HAS_BIAS
    num_rows,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The parts of each sum together, first to last: grid (T, cdiv(N, COLUMNS))."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(sums_ptr + (part * num_rows + row) * N + columns, mask=columns < N, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + columns, total.to(out_ptr.dtype.element_ty), mask=columns < N)


@triton.jit(do_not_specialize=["num_rows"])
def quantized_matmul_kernel(
    out_ptr,  # [T, N], or [PARTS, T, N] float32
    x_ptr,  # [T, K]
    codes_ptr,  # uint8, [N, NUM_PAIRS * GROUP] of nibbles, or [N, NUM_PAIRS * 2 * GROUP]
    factors_ptr,  # int32, [NUM_PAIRS, words, N], as in `GroupedCodes`
    bias_ptr,  # [N], read when HAS_BIAS
    x_stride,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    NUM_PAIRS: tl.constexpr,
    GROUP: tl.constexpr,
    NIBBLES: tl.constexpr,
    OFFSET: tl.constexpr,
    IS_HALF: tl.constexpr,
    HAS_MINS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program per tile of ROWS by COLUMNS outputs and part of the sum over K, which runs from front to back: grid (cdiv(T, ROWS),
    cdiv(N, COLUMNS), PARTS).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, GROUP)
    code_bytes: tl.constexpr = GROUP if NIBBLES else 2 * GROUP  # of the codes of a pair
    scale_words: tl.constexpr = 1 if IS_HALF else 2
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    codes_ptrs = codes_ptr + columns.to(tl.int64)[:, None] * (NUM_PAIRS * code_bytes) + steps[None, :]
    there, wanted = rows < num_rows, columns < N
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    part = tl.program_id(2)
    for pair in tl.range(part * NUM_PAIRS // PARTS, (part + 1) * NUM_PAIRS // PARTS):
        factor_ptrs = factors_ptr + pair * (scale_words * N * (2 if HAS_MINS else 1)) + columns
        first_scale, second_scale = load_factors(factor_ptrs, wanted, N, IS_HALF)
        first_min, second_min = first_scale, second_scale
        if HAS_MINS:
            first_min, second_min = load_factors(factor_ptrs + scale_words * N, wanted, N, IS_HALF)
        codes = tl.load(codes_ptrs + pair * code_bytes, mask=wanted[:, None], other=0)
        if NIBBLES:
            first, second = codes & 15, codes >> 4
        else:
            first, second = codes, tl.load(codes_ptrs + pair * code_bytes + GROUP, mask=wanted[:, None], other=0)
        acc = add_group(acc, first, first_scale, first_min, x_ptrs, 2 * pair, there, K, GROUP, OFFSET, HAS_MINS)
        acc = add_group(acc, second, second_scale, second_min, x_ptrs, 2 * pair + 1, there, K, GROUP, OFFSET, HAS_MINS)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=wanted, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + (part * num_rows + rows).to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_ptrs, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=there[:, None] & wanted[None, :])


@triton.jit
def load_factors(ptrs, wanted, N: tl.constexpr, IS_HALF: tl.constexpr):
    """The scales, or the minimums, of both groups of a pair: float32."""
    words = tl.load(ptrs, mask=wanted, other=0)
    if IS_HALF:
        first = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        first = words.to(tl.float32, bitcast=True)
        second = tl.load(ptrs + N, mask=wanted, other=0).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def add_group(
    acc, codes, scale, minimum, x_ptrs, group, there,
    K: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, HAS_MINS: tl.constexpr,
):  # fmt: skip
    """acc [COLUMNS, ROWS] plus the products of one group: its codes [COLUMNS, GROUP], widened, times its columns of x."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    precision: tl.constexpr = "ieee" if dtype == tl.float32 else "tf32"
    features = group * GROUP + tl.arange(0, GROUP)
    x = tl.load(x_ptrs + features[None, :], mask=there[:, None] & (features < K)[None, :], other=0.0)
    # With these bits above its own a code is a float32 of 2**23 and more; instructions that convert are slower by far.
    numbers = (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)
    scales = tl.broadcast_to(scale[:, None], numbers.shape)
    if HAS_MINS:
        weights = tl.fma(numbers, scales, tl.broadcast_to(minimum[:, None], numbers.shape))
    else:
        weights = numbers * scales
    return tl.dot(weights.to(dtype), tl.trans(x), acc, input_precision=precision)

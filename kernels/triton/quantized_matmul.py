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
GROUPS = (64, 32, 16)  # input features that a kernel takes at a step; larger groups are divided


@dataclass(frozen=True)
class GroupedCodes:
    """Codes of up to 4 bits are stored as nibbles, two groups in the bytes of one: the low halves are the first."""

    codes: torch.Tensor  # [N, num_groups * group_size] int8, or [N, num_groups / 2 * group_size] uint8
    scales: torch.Tensor  # [num_groups, N] float16 where that is exact enough, else float32
    mins: torch.Tensor | None  # like scales
    group_size: int
    offset: int  # taken from each stored code
    in_features: int

    @property
    def is_nibbles(self) -> bool:
        return self.codes.dtype == torch.uint8


def pack_grouped(weight: QuantizedWeight, device: torch.device, dtype: torch.dtype) -> GroupedCodes | None:
    """The form that the kernel reads for activations of `dtype`, or None for groups that it does not know (no multiple of 16)."""
    group_size = next((size for size in GROUPS if weight.group_size % size == 0), None)
    if group_size is None:
        return None
    out_features, in_features = weight.shape
    repeat = weight.group_size // group_size
    codes = weight.codes.to(device)
    scales = weight.scales.to(device).repeat_interleave(repeat, dim=1).t()
    mins = None if weight.mins is None else weight.mins.to(device).repeat_interleave(repeat, dim=1).t()
    offset = 0
    if weight.bits <= 4:
        offset = 1 << (weight.bits - 1) if weight.signed else 0
        if scales.shape[0] % 2:  # the last byte's other half: weights of zero
            codes = torch.nn.functional.pad(codes, (0, group_size), value=-offset)
            scales = torch.nn.functional.pad(scales, (0, 0, 0, 1))
            mins = None if mins is None else torch.nn.functional.pad(mins, (0, 0, 0, 1))
        pairs = (codes.to(torch.int16) + offset).to(torch.uint8).view(out_features, -1, 2, group_size)
        codes = (pairs[:, :, 0] | pairs[:, :, 1] << 4).view(out_features, -1)
    return GroupedCodes(
        codes.contiguous(), _narrow(scales, dtype), None if mins is None else _narrow(mins, dtype), group_size, offset, in_features
    )


def _narrow(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As float16 if that keeps more of each than activations of `dtype` hold; quantised files store such, or products of two."""
    values = values.float().contiguous()
    half = values.half()
    tolerance = 0.0 if dtype == torch.float32 else 2.0**-11
    return half if bool(((half.float() - values).abs() <= values.abs() * tolerance).all()) else values


def unpack_rows(weight: GroupedCodes, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weights of some output features: [R] -> [R, in_features]."""
    codes = weight.codes[rows]
    if weight.is_nibbles:
        codes = torch.stack((codes.view(len(rows), -1, weight.group_size) & 15, codes.view(len(rows), -1, weight.group_size) >> 4), dim=2)
    values = codes.reshape(len(rows), -1, weight.group_size).float() - weight.offset
    values = values * weight.scales[:, rows].t().float().unsqueeze(-1)
    if weight.mins is not None:
        values = values + weight.mins[:, rows].t().float().unsqueeze(-1)
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
    # One row's tiles lie side by side, so that those of other rows find the weights in the L2 cache.
    quantized_matmul_kernel[(triton.cdiv(num_rows, tiles.rows), triton.cdiv(num_columns, tiles.columns))](
        out,
        x,
        weight.codes,
        weight.scales,
        weight.scales if weight.mins is None else weight.mins,
        weight.scales if bias is None else bias,
        x.stride(0),
        num_rows,
        N=num_columns,
        K=weight.in_features,
        NUM_STEPS=weight.scales.shape[0] // (2 if weight.is_nibbles else 1),
        GROUP=weight.group_size,
        NIBBLES=weight.is_nibbles,
        OFFSET=weight.offset,
        HAS_MINS=weight.mins is not None,
        HAS_BIAS=bias is not None,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def quantized_matmul_kernel(
    out_ptr,  # [T, N]
    x_ptr,  # [T, K]
    codes_ptr,  # [N, NUM_STEPS * GROUP]
    scales_ptr,  # [groups, N]
    mins_ptr,  # [groups, N], read when HAS_MINS
    bias_ptr,  # [N], read when HAS_BIAS
    x_stride,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    NUM_STEPS: tl.constexpr,  # groups, or pairs of them when NIBBLES
    GROUP: tl.constexpr,
    NIBBLES: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_MINS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program per tile of ROWS by COLUMNS outputs: grid (cdiv(T, ROWS), cdiv(N, COLUMNS)). The sum runs over K from front to back."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, GROUP)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    codes_ptrs = codes_ptr + columns.to(tl.int64)[:, None] * (NUM_STEPS * GROUP) + steps[None, :]
    there, wanted = rows < num_rows, columns < N
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for step in tl.range(0, NUM_STEPS):
        codes = tl.load(codes_ptrs + step * GROUP, mask=wanted[:, None], other=0)
        if NIBBLES:
            acc = add_group(
                acc, codes & 15, x_ptrs, scales_ptr, mins_ptr, 2 * step, columns, wanted, there, N, K, GROUP, OFFSET, HAS_MINS
            )  # fmt: skip
            acc = add_group(
                acc, codes >> 4, x_ptrs, scales_ptr, mins_ptr, 2 * step + 1, columns, wanted, there, N, K, GROUP, OFFSET, HAS_MINS
            )  # fmt: skip
        else:
            acc = add_group(acc, codes, x_ptrs, scales_ptr, mins_ptr, step, columns, wanted, there, N, K, GROUP, OFFSET, HAS_MINS)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=wanted, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_ptrs, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=there[:, None] & wanted[None, :])


@triton.jit
def add_group(
    acc, codes, x_ptrs, scales_ptr, mins_ptr, group, columns, wanted, there,
    N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, HAS_MINS: tl.constexpr,
):  # fmt: skip
    """acc [COLUMNS, ROWS] plus the products of one group: its codes [COLUMNS, GROUP], widened, times its columns of x."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    precision: tl.constexpr = "ieee" if dtype == tl.float32 else "tf32"
    features = group * GROUP + tl.arange(0, GROUP)
    x = tl.load(x_ptrs + features[None, :], mask=there[:, None] & (features < K)[None, :], other=0.0)
    scale = tl.load(scales_ptr + group * N + columns, mask=wanted, other=0.0).to(tl.float32)
    weights = (codes.to(tl.float32) - OFFSET) * scale[:, None]
    if HAS_MINS:
        weights += tl.load(mins_ptr + group * N + columns, mask=wanted, other=0.0).to(tl.float32)[:, None]
    return tl.dot(weights.to(dtype), tl.trans(x), acc, input_precision=precision)

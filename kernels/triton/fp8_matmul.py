"""Products of 8-bit floats (E4M3): weights with a scale for each output feature, activations rounded row by row with a scale of their own.

Following Micikevicius et al., 2022 ("FP8 formats for deep learning"); needs sm_89 or later, whose tensor cores multiply E4M3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.tuning import Tiles, tiles_for
from kernels.weights import FP8_MAX

DEPTH = 128  # input features of a step; on sm_90 sums of this many products are added up in float32


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> (codes [T, K] float8_e4m3fn, scales [T] float32) with x about codes * scale, the largest of a row at the type's end."""
    num_rows, depth = x.shape
    codes = torch.empty((num_rows, depth), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    columns = triton.next_power_of_2(depth)
    quantize_rows_kernel[(num_rows,)](
        codes, scales, x, x.stride(0), N=depth, COLUMNS=columns, LARGEST=FP8_MAX, num_warps=min(16, max(4, columns // 1024)),
        enable_fp_fusion=False,
    )  # fmt: skip
    return codes, scales


def fp8_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    deterministic: bool = False,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """x @ (weight * scales).T + bias: x [T, K] of a half type, weight [N, K] float8_e4m3fn, scales [N] float32 -> [T, N].

    Activations are rounded to E4M3 first; sums are of float32. With `deterministic` the tile does not depend on T, so a row of the result
    has the same bits whatever the other rows are. `tiles` are those of the table unless given.
    """
    (num_rows, depth), num_columns = x.shape, weight.shape[0]
    codes, row_scales = quantize_rows(x)
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    tiles = tiles or tiles_for("fp8_matmul", x.device, None if deterministic else num_rows)
    fp8_matmul_kernel[(triton.cdiv(num_rows, tiles.rows), triton.cdiv(num_columns, tiles.columns))](
        out,
        codes,
        row_scales,
        weight,
        scales,
        scales if bias is None else bias,
        num_rows,
        N=num_columns,
        K=depth,
        HAS_BIAS=bias is not None,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        DEPTH=DEPTH,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def quantize_rows_kernel(
    codes_ptr,  # [T, N]
    scales_ptr,  # [T] float32
    x_ptr,  # [T, N]
    x_stride,
    N: tl.constexpr,
    COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr,  # finite number of the type of codes
):
    """One program per row: grid (T)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < N, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), 0)
    scale = tl.where(largest > 0.0, largest / LARGEST, 1.0)
    tl.store(scales_ptr + row, scale)
    # A rounded quotient may lie just outside, where the type has no number.
    codes = tl.minimum(tl.maximum(x / scale, -LARGEST), LARGEST).to(codes_ptr.dtype.element_ty)
    tl.store(codes_ptr + row * N + columns, codes, mask=columns < N)


@triton.jit(do_not_specialize=["num_rows"])
def fp8_matmul_kernel(
    out_ptr,  # [T, N]
    x_ptr,  # [T, K] E4M3
    row_scales_ptr,  # [T] float32
    weight_ptr,  # [N, K] E4M3
    scales_ptr,  # [N] float32
    bias_ptr,  # [N], read when HAS_BIAS
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One program per tile of ROWS by COLUMNS outputs, transposed as in `quantized_matmul`: grid (cdiv(T, ROWS), cdiv(N, COLUMNS))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH)
    there, wanted = rows < num_rows, columns < N
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * K + steps[None, :]
    weight_ptrs = weight_ptr + columns.to(tl.int64)[:, None] * K + steps[None, :]
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for k in tl.range(0, K, DEPTH):
        inside = (k + steps < K)[None, :]
        x = tl.load(x_ptrs + k, mask=there[:, None] & inside, other=0.0)
        weight = tl.load(weight_ptrs + k, mask=wanted[:, None] & inside, other=0.0)
        acc = tl.dot(weight, tl.trans(x), acc, max_num_imprecise_acc=DEPTH)
    acc = acc * tl.load(scales_ptr + columns, mask=wanted, other=0.0)[:, None]
    acc = acc * tl.load(row_scales_ptr + rows, mask=there, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=wanted, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_ptrs, tl.trans(acc).to(out_ptr.dtype.element_ty), mask=there[:, None] & wanted[None, :])

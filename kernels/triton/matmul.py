"""Products with weights whose sums have one order, however many rows there are.

cuBLAS picks an algorithm by the number of rows: another tile, the sum over K split among programs, another instruction. Each is right, but
they round differently, so a row's bits depend on the rows beside it. Here a number is computed in one way only: the tile of rows
is as high for one row as for a thousand (those that are not there are zeros), the sum runs over K from front to back in one program,
and so the same tensor-core instruction adds the same numbers in the same order.

What it costs: a tile that serves decodes and prompts alike is the best for neither; and as nothing is split along K, a weight with few
outputs has fewer programs in a decode (one for each 64 outputs) than a large GPU has processors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Constants and not tuned at run time: a change here changes bits.
ROWS = 64  # the least that sm_90 multiplies with its own instruction (wgmma); few enough that a decode still waits for memory alone
COLUMNS = 64
DEPTH = 64  # of K per step, in half precision; float32 takes half, for its size
GROUP = 8  # tiles of rows that are computed side by side, so that they find the weights of their columns in the L2 cache


def matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias: x [T, K], weight [N, K], bias [N] or None, all of one type -> [T, N]; summed in float32, rounded once.

    T, N and K are arbitrary. The rows of x and of weight must be contiguous. A row of the result has the same bits whatever the other
    rows are and however many.
    """
    (num_rows, depth), num_columns = x.shape, weight.shape[0]
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    matmul_kernel[(triton.cdiv(num_rows, ROWS) * triton.cdiv(num_columns, COLUMNS),)](
        out,
        x,
        weight,
        weight if bias is None else bias,
        x.stride(0),
        weight.stride(0),
        num_rows,
        N=num_columns,
        K=depth,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH if x.element_size() == 2 else DEPTH // 2,
        GROUP=GROUP,
        HAS_BIAS=bias is not None,
        num_warps=4,
        num_stages=4 if x.element_size() == 2 else 3,
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def matmul_kernel(
    out_ptr,  # [T, N]
    x_ptr,  # [T, K]
    weight_ptr,  # [N, K]
    bias_ptr,  # [N], read when HAS_BIAS
    x_stride,
    weight_stride,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """One program per tile of ROWS by COLUMNS outputs: grid (cdiv(T, ROWS) * cdiv(N, COLUMNS)).

    Programs that run at the same time share weights: GROUP tiles of rows come before the next columns. That order changes no bit.
    """
    num_row_tiles = tl.cdiv(num_rows, ROWS)
    group_size = GROUP * tl.cdiv(N, COLUMNS)
    first_row_tile = tl.program_id(0) // group_size * GROUP
    group_rows = tl.minimum(num_row_tiles - first_row_tile, GROUP)
    place = tl.program_id(0) % group_size
    rows = (first_row_tile + place % group_rows) * ROWS + tl.arange(0, ROWS)
    columns = place // group_rows * COLUMNS + tl.arange(0, COLUMNS)

    steps = tl.arange(0, DEPTH)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride + steps[None, :]
    weight_ptrs = weight_ptr + columns.to(tl.int64)[:, None] * weight_stride + steps[None, :]
    precision: tl.constexpr = "ieee" if x_ptr.dtype.element_ty == tl.float32 else "tf32"
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.range(0, K, DEPTH):
        inside = (k + steps < K)[None, :]
        x = tl.load(x_ptrs + k, mask=(rows < num_rows)[:, None] & inside, other=0.0)
        weight = tl.load(weight_ptrs + k, mask=(columns < N)[:, None] & inside, other=0.0)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision=precision)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(rows < num_rows)[:, None] & (columns < N)[None, :])

"""The rotation that keys and values of an int8 cache have gone through (`kernels.kv_cache`), as a product with 1 and -1."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.batch import AttentionShape


def rotate_queries(x: torch.Tensor, shape: AttentionShape, out: torch.Tensor | None = None) -> torch.Tensor:
    """Each head in the first H * D columns of x [T, ...], rotated: -> [T, H * D], in `out` if given, which may be x. Its own inverse."""
    if out is None:
        out = torch.empty((x.shape[0], shape.q_size), dtype=x.dtype, device=x.device)
    num_rows, columns = x.shape[0] * shape.num_heads, max(16, triton.next_power_of_2(shape.head_size))
    rows = max(16, 4096 // columns)
    rotate_heads_kernel[(triton.cdiv(num_rows, rows),)](
        out,
        x,
        out.stride(0),
        x.stride(0),
        num_rows,
        H=shape.num_heads,
        D=shape.head_size,
        D_PAD=columns,
        ROWS=rows,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def rotate_heads_kernel(
    out_ptr,  # [T, H * D]
    x_ptr,  # [T, at least H * D]
    out_stride,
    x_stride,
    num_rows,  # T * H
    H: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A row is one head of one token: grid (cdiv(num_rows, ROWS))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, D_PAD)
    inside = (rows < num_rows)[:, None] & (dims < D)[None, :]
    tokens, heads = (rows // H).to(tl.int64), rows % H
    x = tl.load(x_ptr + (tokens * x_stride + heads * D)[:, None] + dims[None, :], mask=inside, other=0.0)
    sums = tl.dot(x, signs(dims, dims, D, x.dtype), input_precision="ieee") * rotation_factor(D)
    tl.store(out_ptr + (tokens * out_stride + heads * D)[:, None] + dims[None, :], sums.to(x.dtype), mask=inside)


@triton.jit
def signs(rows, columns, D: tl.constexpr, dtype: tl.constexpr):
    """Entries of the unscaled Hadamard matrix of a head: 1 or -1; 0 between different runs of the largest power of two that divides D.

    The sign is that of the number of ones that row and column have in common (Sylvester's construction).
    """
    run: tl.constexpr = D & -D
    common = rows[:, None] & columns[None, :] & (run - 1)
    odd = (0x6996 >> ((common ^ (common >> 4)) & 15)) & 1  # 0x6996: the parity of each number of four bits
    together = (rows // run)[:, None] == (columns // run)[None, :]
    return tl.where(together, 1 - 2 * odd, 0).to(dtype)


@triton.jit
def rotation_factor(D: tl.constexpr):
    """What makes the rotation orthonormal."""
    run: tl.constexpr = D & -D
    return run**-0.5

"""Root-mean-square norm, alone or after the addition of a residual."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, n], weight [n] -> [T, n]; the contract is `Ops.rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(out, x, x, weight, eps, has_residual=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x and residual [T, n] -> (norm of their sum, the sum, which replaces residual); the contract is `Ops.add_rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(out, x, residual, weight, eps, has_residual=True)
    return out, residual


def _launch(out: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, has_residual: bool) -> None:
    num_rows, n = x.shape
    columns = triton.next_power_of_2(n)
    rows = max(1, 2048 // columns)
    rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        out,
        x,
        residual,
        weight,
        x.stride(0),
        residual.stride(0),
        num_rows,
        eps,
        N=n,
        ROWS=rows,
        COLUMNS=columns,
        HAS_RESIDUAL=has_residual,
        num_warps=min(16, max(4, columns // 1024)),
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    out_ptr,  # [T, N]
    x_ptr,  # [T, N]
    residual_ptr,  # [T, N], written when HAS_RESIDUAL
    weight_ptr,  # [N]
    x_stride,
    residual_stride,
    num_rows,
    eps,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """ROWS rows per program: grid (cdiv(T, ROWS)). The mean is taken in float32; sum and result are rounded to the type of x."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=inside, other=0.0)
    dtype: tl.constexpr = x.dtype
    if HAS_RESIDUAL:
        residual_ptrs = residual_ptr + rows[:, None] * residual_stride + columns[None, :]
        residual = tl.load(residual_ptrs, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(residual_ptrs, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, 1) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(dtype).to(tl.float32)
    normed = (x32 * scale[:, None]).to(dtype).to(tl.float32) * weight[None, :]
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], normed.to(dtype), mask=inside)

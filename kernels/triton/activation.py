"""Gated activations: one half of each row goes through a non-linearity and multiplies the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 * n] -> [T, n]; the contract is `Ops.silu_and_mul`."""
    return _launch(gate_up, gelu_tanh=False)


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 * n] -> [T, n]; the contract is `Ops.gelu_tanh_and_mul`."""
    return _launch(gate_up, gelu_tanh=True)


def _launch(gate_up: torch.Tensor, *, gelu_tanh: bool) -> torch.Tensor:
    num_rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, n), dtype=gate_up.dtype, device=gate_up.device)
    columns = min(1024, triton.next_power_of_2(n))
    rows = 1024 // columns
    gated_activation_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(n, columns))](
        out, gate_up, gate_up.stride(0), num_rows, N=n, ROWS=rows, COLUMNS=columns, GELU_TANH=gelu_tanh, num_warps=4, enable_fp_fusion=True
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def gated_activation_kernel(
    out_ptr,  # [T, N]
    gate_up_ptr,  # [T, 2 * N]
    gate_up_stride,
    num_rows,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GELU_TANH: tl.constexpr,
):
    """ROWS by COLUMNS outputs per program: grid (cdiv(T, ROWS), cdiv(N, COLUMNS)). The non-linearity is computed in float32 and rounded
    before the product, as two separate operations would.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < N)[None, :]
    gate_ptrs = gate_up_ptr + rows[:, None] * gate_up_stride + columns[None, :]
    gate = tl.load(gate_ptrs, mask=inside, other=0.0)
    up = tl.load(gate_ptrs + N, mask=inside, other=0.0)
    gate32 = gate.to(tl.float32)
    if GELU_TANH:
        # (1 + tanh(z)) / 2 is sigmoid(2z): Hendrycks and Gimpel, 2016, with 2z = sqrt(8 / pi) * (x + 0.044715 x**3).
        activated = gate32 * tl.sigmoid(1.5957691216057308 * (gate32 + 0.044715 * gate32 * gate32 * gate32))
    else:
        activated = gate32 * tl.sigmoid(gate32)
    product = activated.to(gate.dtype).to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], product.to(gate.dtype), mask=inside)

"""Input tokens that the host has not seen yet: they are read where the pass before has left them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 1024  # tokens of one program


def fetch_tokens(token_ids: torch.Tensor, last_token_ids: torch.Tensor) -> None:
    """token_ids [T] int32, in place; the contract is `DrawingOps.fetch_tokens`."""
    num_tokens = token_ids.shape[0]
    fetch_tokens_kernel[(triton.cdiv(num_tokens, TILE),)](
        token_ids, last_token_ids, num_tokens, TILE=TILE, num_warps=4, enable_fp_fusion=True
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def fetch_tokens_kernel(
    token_ids_ptr,  # [num_tokens] int32
    last_token_ids_ptr,  # [num_slots] int32
    num_tokens,
    TILE: tl.constexpr,
):
    """One program per tile: grid (ceil(num_tokens / TILE))."""
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    token_ids = tl.load(token_ids_ptr + tokens, mask=tokens < num_tokens, other=0)
    is_in_flight = token_ids < 0
    tl.store(token_ids_ptr + tokens, tl.load(last_token_ids_ptr - 1 - token_ids, mask=is_in_flight), mask=is_in_flight)

"""What one row of the KV cache is: the key or the value of one token and one head, in the cache's type.

    float32, float16, bfloat16, float8_e4m3fn    head_size numbers
    int8                                         head_size codes in [-127, 127], then the bytes of a float32 scale: number = scale * code

An int8 row's scale is its own and lies in the row itself. So a row depends on its token alone, and whatever copies blocks, on one device,
to host memory or back, carries the scales without knowing of them.
"""

from __future__ import annotations

import torch

SCALE_BYTES = 4
_TOP = 127


def row_elements(head_size: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` in a row."""
    return head_size + SCALE_BYTES if dtype == torch.int8 else head_size


def encode_rows(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[..., head_size] floats -> [..., row_elements(head_size, dtype)] of `dtype`."""
    if dtype != torch.int8:
        return values.to(dtype)
    values = values.to(torch.float32)
    largest = values.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.full_like(largest, _TOP).div(largest), 0)
    codes = (values * inverse).round().to(torch.int8)
    return torch.cat((codes, (largest / _TOP).view(torch.int8)), dim=-1)


def decode_rows(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """The numbers that rows of a cache hold, in float32: the inverse of `encode_rows`, but for rounding."""
    if rows.dtype != torch.int8:
        return rows.to(torch.float32)
    scales = rows[..., head_size:].contiguous().view(torch.float32)
    return rows[..., :head_size].to(torch.float32) * scales

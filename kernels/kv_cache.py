"""What one row of the KV cache is: the key or the value of one token and one head, in the cache's type.

    float32, float16, bfloat16, float8_e4m3fn    head_size numbers
    int8                                         head_size codes in [-127, 127], then the bytes of a float32 scale:
                                                 rotated number = scale * code

An int8 row's scale is its own and lies in the row itself. So a row depends on its token alone, and whatever copies blocks, on one device,
to host memory or back, carries the scales without knowing of them.

What an int8 row rounds is not the key or value itself but its Hadamard rotation (Ashkboos et al., 2024, QuaRot, section 4.2): some
dimensions of a model's keys are many times larger than the others, and rotated, their size is spread over the whole row, so that a scale
that fits them fits all. Attention need not rotate anything back: the rotation is orthogonal, so rotated queries have the same
products with rotated keys, and a sum of rotated values is rotated back once, at its end.
"""

from __future__ import annotations

import torch

SCALE_BYTES = 4
_TOP = 127


def row_elements(head_size: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` in a row."""
    return head_size + SCALE_BYTES if dtype == torch.int8 else head_size


def rotation_size(head_size: int) -> int:
    """Consecutive numbers of a head that are rotated together: the largest power of two that divides it."""
    return head_size & -head_size


def rotate_rows(values: torch.Tensor) -> torch.Tensor:
    """The orthonormal Hadamard rotation of each run of `rotation_size` numbers in [..., head_size] float32; it is its own inverse.

    The fast Walsh-Hadamard transform: sums and differences at distances 1, 2, 4, ..., then all times size ** -0.5.
    """
    size = rotation_size(values.shape[-1])
    distance, rotated = 1, values
    while distance < size:
        first, second = rotated.unflatten(-1, (-1, 2, distance)).unbind(-2)
        rotated = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        distance *= 2
    return rotated * size**-0.5


def encode_rows(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[..., head_size] floats -> [..., row_elements(head_size, dtype)] of `dtype`."""
    if dtype != torch.int8:
        return values.to(dtype)
    rotated = rotate_rows(values.to(torch.float32))
    largest = rotated.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.full_like(largest, _TOP).div(largest), 0)
    codes = (rotated * inverse).round().to(torch.int8)
    return torch.cat((codes, (largest / _TOP).view(torch.int8)), dim=-1)


def decode_rows(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """The numbers that rows of a cache hold, in float32: the inverse of `encode_rows`, but for rounding."""
    if rows.dtype != torch.int8:
        return rows.to(torch.float32)
    scales = rows[..., head_size:].contiguous().view(torch.float32)
    return rotate_rows(rows[..., :head_size].to(torch.float32) * scales)

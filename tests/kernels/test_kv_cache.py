"""Rows of the cache on their own: what rounding to int8 keeps of a key or value."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import decode_rows, encode_rows, rotate_rows

HEAD_SIZES = [7, 20, 64, 80, 96, 128, 256]


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_the_rotation_keeps_products_and_is_its_own_inverse(head_size: int) -> None:
    a, b = torch.randn(2, 50, head_size, generator=torch.Generator().manual_seed(head_size))
    torch.testing.assert_close(rotate_rows(rotate_rows(a)), a)
    torch.testing.assert_close((rotate_rows(a) * rotate_rows(b)).sum(-1), (a * b).sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_an_int8_row_is_within_half_a_code_of_its_rotation(head_size: int) -> None:
    values = torch.randn(50, head_size, generator=torch.Generator().manual_seed(head_size)) * torch.logspace(-6, 6, 50).unsqueeze(1)
    values[7] = 0.0
    rotated = rotate_rows(values)
    errors = rotate_rows(decode_rows(encode_rows(values, torch.int8), head_size)) - rotated
    assert (errors.abs() <= rotated.abs().amax(-1, keepdim=True) * (0.501 / 127)).all()


def test_one_very_large_dimension_does_not_cost_the_others_their_bits() -> None:
    values = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    values[:, 5] += 40.0
    error = (decode_rows(encode_rows(values, torch.int8), 64) - values).square().mean().sqrt()
    unrotated = 42.0 / 127 * 12**-0.5  # of a row whose codes must reach the largest number itself
    assert error < unrotated / 3

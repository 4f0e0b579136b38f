"""Floats rounded to codes on load: how far from the floats, and in which form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.quantize import quantize
from kernels.weights import DenseWeight, QuantizedWeight


def random_matrix(out_features: int, in_features: int, seed: int, scale: float = 0.05) -> torch.Tensor:
    return torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(seed)) * scale


def quantized(matrix: torch.Tensor, bits: int) -> QuantizedWeight:
    weight = quantize(DenseWeight(matrix), bits)
    assert isinstance(weight, QuantizedWeight)
    return weight


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 6), st.sampled_from([16, 32]), st.sampled_from([1e-4, 0.05, 3.0]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.sampled_from([4, 8]), st.integers(0, 1000),
)  # fmt: skip
def test_no_float_moves_by_more_than_a_step_of_its_group(rows, groups, size, scale, dtype, bits, seed):
    matrix = random_matrix(rows, groups * size, seed, scale).to(dtype)
    weight = quantized(matrix, bits)
    low, high = (-127, 127) if bits == 8 else (0, 15)
    assert low <= int(weight.codes.min())
    assert int(weight.codes.max()) <= high
    steps = weight.scales.repeat_interleave(weight.group_size, dim=1)
    # Half a step for rounding; a little for the scale's own rounding to float16, and with 4 bits for ends that the fitted line cuts off.
    error = (weight.dequantize() - matrix.float()).abs()
    assert (error <= steps * (0.6 if bits == 8 else 1.6) + 1e-6).all()


def test_scales_and_minimums_are_float16_values():
    matrix = random_matrix(50, 96, 0)
    for bits in (4, 8):
        weight = quantized(matrix, bits)
        for values in (weight.scales, weight.mins):
            assert values is None or torch.equal(values, values.half().float())


def test_fitting_takes_a_tenth_of_the_squared_error_away():
    matrix = random_matrix(200, 512, 1)
    grouped = matrix.view(200, -1, 32)
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    spanned = ((grouped - low) * 15 / (high - low)).round() * (high - low) / 15 + low
    fitted = quantized(matrix, 4).dequantize()
    assert (fitted - matrix).square().mean() < 0.9 * (spanned.view_as(matrix) - matrix).square().mean()


@pytest.mark.parametrize("bits", [4, 8])
def test_what_lies_on_a_grid_already_stays_where_it_is(bits):
    generator = torch.Generator().manual_seed(2)
    low, high = (-127, 128) if bits == 8 else (0, 16)
    codes = torch.randint(low, high, (20, 2, 32), generator=generator)
    codes[..., 0], codes[..., 1] = low, high - 1
    matrix = (codes * 0.0078125 + (0.5 if bits == 4 else 0.0)).view(20, 64)
    assert torch.equal(quantized(matrix, bits).dequantize(), matrix)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 0.25, -0.25, 1e6, -(2.0**-20)])
def test_groups_of_one_value_and_very_large_ones_stay_finite_and_near(bits, value):
    matrix = torch.full((3, 64), value)
    torch.testing.assert_close(quantized(matrix, bits).dequantize(), matrix, rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rows_codes_do_not_depend_on_the_other_rows(bits):
    matrix = random_matrix(700, 1024, 3)  # more than is worked on at once
    whole = quantized(matrix, bits)
    for row in (0, 255, 256, 699):
        alone = quantized(matrix[row : row + 1], bits)
        assert torch.equal(alone.codes, whole.codes[row : row + 1])
        assert torch.equal(alone.scales, whole.scales[row : row + 1])


def test_groups_are_the_largest_that_divide_the_features_and_others_stay_floats():
    assert quantized(random_matrix(2, 64, 0), 4).group_size == 32
    assert quantized(random_matrix(2, 48, 0), 4).group_size == 16
    weight = DenseWeight(random_matrix(2, 40, 0))
    assert quantize(weight, 8) is weight

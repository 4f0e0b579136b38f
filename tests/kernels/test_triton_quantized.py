"""Triton's products with quantised weights: right over random shapes and forms, and with bits that do not depend on the number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton_cases import DEVICE, INTERPRETED, PRODUCT_DTYPES, assert_close, noise

from kernels.triton import TritonOps
from kernels.triton.fp8_matmul import quantize_rows
from kernels.triton.linear import DenseLinear, Fp8Linear, GroupedLinear
from kernels.triton.quantized_matmul import count_parts
from kernels.triton.tuning import TABLE, read_table, row_class
from kernels.weights import Fp8Weight, QuantizedWeight

ROWS = st.sampled_from([1, 3, 17, 70])
COLUMNS = st.integers(1, 100)
FORMS = st.sampled_from([(2, False), (4, False), (4, True), (6, True), (7, False), (8, True)])  # bits of a code, and whether it is signed
HALVES = [dtype for dtype in PRODUCT_DTYPES if dtype != torch.float32]


def random_quantized(generator, out_features, num_groups, group_size, bits, signed, has_mins):
    low = -(1 << (bits - 1)) if signed else 0
    codes = torch.randint(low, low + (1 << bits), (out_features, num_groups * group_size), generator=generator).to(torch.int8)
    scales = (torch.rand(out_features, num_groups, generator=generator) / (1 << bits)).half().float()
    mins = torch.randn(scales.shape, generator=generator).half().float() if has_mins else None
    return QuantizedWeight(codes, scales, mins, group_size, bits, signed)


def without_blas(monkeypatch):
    """The order of addition in the interpreter's products would depend on a row's place in the matrix, as a tensor core's does not."""
    if INTERPRETED:
        monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("ik,kj->ij", a, b, dtype=dtype))


@settings(max_examples=12)
@given(
    st.sampled_from(PRODUCT_DTYPES), ROWS, COLUMNS, st.integers(1, 5), st.sampled_from([16, 32, 48, 64, 128]), FORMS,
    st.booleans(), st.booleans(), st.integers(0, 999),
)  # fmt: skip
@example(torch.float16, 1, 64, 3, 32, (4, True), False, False, 0)  # a last group without a partner
def test_products_with_groups_of_codes_are_those_of_the_dequantised_weight(
    dtype, num_rows, num_columns, num_groups, group_size, form, has_mins, has_bias, seed
):
    generator = torch.Generator().manual_seed(seed)
    weight = random_quantized(generator, num_columns, num_groups, group_size, *form, has_mins)
    depth = weight.shape[1]
    x = noise(generator, num_rows, depth + 8, dtype=dtype)[:, :depth] / depth**0.5
    bias = torch.randn(num_columns, generator=generator) if has_bias else None
    ops = TritonOps(DEVICE, dtype)
    packed = ops.pack_linear(weight, bias)
    assert isinstance(packed, GroupedLinear)
    dense = weight.dequantize().to(DEVICE)
    expected = x.float() @ dense.T + (0 if bias is None else bias.to(DEVICE))
    assert_close(ops.linear(x, packed), expected.to(dtype), dtype)
    rows = torch.tensor([0, num_columns - 1, 0], dtype=torch.int32, device=DEVICE)
    assert_close(ops.embedding(rows, packed), dense[rows].to(dtype), dtype)


@pytest.mark.parametrize("num_rows", [1, 64])
@pytest.mark.parametrize("has_mins", [False, True])
def test_a_long_sum_with_few_outputs_is_computed_in_parts_and_right(num_rows, has_mins):
    generator = torch.Generator().manual_seed(0)
    weight = random_quantized(generator, 20, 34, 16, 4, False, has_mins)
    x, bias = noise(generator, num_rows, 34 * 16, dtype=torch.float16) / 24, torch.randn(20, generator=generator)
    ops = TritonOps(DEVICE, torch.float16)
    packed = ops.pack_linear(weight, bias)
    assert count_parts(1, len(packed.weight.factors)) == 4
    assert_close(ops.linear(x, packed), (x.float() @ weight.dequantize().to(DEVICE).T + bias.to(DEVICE)).half(), torch.float16)


def test_codes_of_four_bits_take_half_a_byte_and_scales_of_half_precision_stay_so():
    generator = torch.Generator().manual_seed(0)
    weight = random_quantized(generator, 40, 4, 32, 4, False, True)
    packed = TritonOps(DEVICE, torch.float16).pack_linear(weight, None).weight
    assert packed.codes.nbytes == 40 * 128 // 2
    assert packed.factors.nbytes == 40 * 4 * 2 * 2
    tiny = QuantizedWeight(weight.codes, weight.scales * 1e-7, None, 32, 4, False)
    assert TritonOps(DEVICE, torch.float16).pack_linear(tiny, None).weight.factors.nbytes == 40 * 4 * 4


def test_groups_that_the_kernel_does_not_know_become_dense():
    weight = random_quantized(torch.Generator().manual_seed(0), 5, 3, 20, 4, True, False)
    assert isinstance(TritonOps(DEVICE, torch.float16).pack_linear(weight, None), DenseLinear)


@settings(max_examples=10)
@given(st.sampled_from(PRODUCT_DTYPES), ROWS, COLUMNS, st.integers(1, 300), st.booleans(), st.integers(0, 999))
def test_fp8_products_are_those_of_the_rounded_operands(dtype, num_rows, num_columns, depth, has_bias, seed):
    generator = torch.Generator().manual_seed(seed)
    x = noise(generator, num_rows, depth + 8, dtype=dtype)[:, :depth]
    weight = Fp8Weight.of(torch.randn(num_columns, depth, generator=generator) / depth**0.5)
    bias = torch.randn(num_columns, generator=generator) if has_bias else None
    ops = TritonOps(DEVICE, dtype)
    packed = ops.pack_linear(weight, bias)
    assert isinstance(packed, Fp8Linear)
    codes, scales = quantize_rows(x)
    dense = weight.dequantize().to(DEVICE)
    expected = (codes.float() * scales[:, None]) @ dense.T + (0 if bias is None else bias.to(DEVICE))
    assert_close(ops.linear(x, packed), expected.to(dtype), dtype)
    rows = torch.tensor([num_columns - 1, 0], dtype=torch.int32, device=DEVICE)
    assert_close(ops.embedding(rows, packed), dense[rows].to(dtype), dtype)


def test_rows_are_rounded_each_with_its_own_scale_to_three_bits_of_mantissa():
    x = (
        noise(torch.Generator().manual_seed(0), 4, 200, dtype=torch.float16)
        * torch.tensor([[1e-3], [1.0], [100.0], [0.0]]).to(DEVICE).half()
    )
    codes, scales = quantize_rows(x)
    largest = x.abs().amax(-1).float()
    torch.testing.assert_close(scales[:3], largest[:3] / 448)
    back = codes.float() * scales[:, None]
    assert ((back - x.float()).abs() <= x.float().abs() / 16 + largest[:, None] / 448 / 256).all()
    assert not back[3].any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_deterministic_products_give_a_row_the_same_bits_whatever_the_other_rows_are(dtype, monkeypatch):
    without_blas(monkeypatch)
    generator = torch.Generator().manual_seed(1)
    ops = TritonOps(DEVICE, dtype, deterministic=True)
    weights = [random_quantized(generator, 90, 4, 32, 4, True, True), Fp8Weight.of(torch.randn(90, 128, generator=generator))]
    x = noise(generator, 150, 128, dtype=dtype)
    for weight in weights:
        packed = ops.pack_linear(weight, None)
        together = ops.linear(x, packed)
        for start, stop in ((0, 1), (63, 64), (64, 65), (5, 22), (30, 130)):
            assert torch.equal(ops.linear(x[start:stop], packed), together[start:stop]), f"rows {start} to {stop}"


def test_the_table_has_tiles_for_every_number_of_rows_that_a_program_can_hold():
    table = read_table(TABLE)
    for kernel in {kernel for kernel, _, _ in table}:
        for num_rows in (None, 1, 16, 17, 64, 65, 8192):
            tiles = table[kernel, "any", row_class(num_rows)]
            assert tiles.rows >= 16
            assert tiles.rows & (tiles.rows - 1) == tiles.columns & (tiles.columns - 1) == 0

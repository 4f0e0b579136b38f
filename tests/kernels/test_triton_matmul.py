"""Triton's own matrix products, for `deterministic`: right, and with bits that do not depend on the number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton_cases import DEVICE, INTERPRETED, PRODUCT_DTYPES, assert_close, noise

from kernels.ops import load_ops
from kernels.reference import ReferenceOps
from kernels.triton import TritonOps
from kernels.triton.matmul import GROUP, ROWS, matmul
from kernels.weights import DenseWeight

SIZES = st.integers(1, 200)


@settings(max_examples=30)
@given(st.sampled_from(PRODUCT_DTYPES), SIZES, SIZES, SIZES, st.booleans(), st.integers(0, 1000))
@example(torch.float32, GROUP * ROWS + 1, 70, 33, True, 0)  # the last group of row tiles is not full
@example(torch.float16, 2 * GROUP * ROWS, 130, 8, False, 0)
def test_products_agree_with_the_reference(dtype, num_rows, num_columns, depth, has_bias, seed):
    generator = torch.Generator().manual_seed(seed)
    x = noise(generator, num_rows, depth + 8, dtype=dtype)[:, :depth]  # rows need not lie close together
    weight = DenseWeight(noise(generator, num_columns, depth) / depth**0.5)
    bias = noise(generator, num_columns) if has_bias else None
    ops, reference = TritonOps(DEVICE, dtype, deterministic=True), ReferenceOps(DEVICE, dtype)
    actual = ops.linear(x, ops.pack_linear(weight, bias))
    assert_close(actual, reference.linear(x, reference.pack_linear(weight, bias)), dtype)


def test_what_lies_behind_the_operands_is_not_read():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = torch.full((70, 80), float("nan")), torch.full((40, 80), float("nan")), torch.full((40,), float("nan"))
    x[:65, :70], weight[:33, :70], bias[:33] = noise(generator, 65, 70), noise(generator, 33, 70), noise(generator, 33)
    x, weight, bias = x.to(DEVICE)[:65, :70], weight.to(DEVICE)[:33, :70], bias.to(DEVICE)[:33]
    assert_close(matmul(x, weight, bias), x @ weight.T + bias, torch.float32)


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES, ids=str)
def test_a_row_of_a_product_has_the_same_bits_whatever_the_other_rows_are_and_however_many(dtype, monkeypatch):
    if INTERPRETED:  # through BLAS, whose order of addition depends on a row's place in the matrix, as a tensor core's does not
        monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("ik,kj->ij", a, b, dtype=dtype))
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (noise(generator, *size, dtype=dtype) for size in ((600, 150), (90, 150), (90,)))
    together = matmul(x, weight, bias)
    for start, stop in ((0, 1), (63, 64), (64, 65), (599, 600), (5, 22), (30, 130), (1, 600)):
        assert torch.equal(matmul(x[start:stop], weight, bias), together[start:stop]), f"rows {start} to {stop}"


def test_a_set_says_whether_it_is_batch_invariant_and_the_reference_cannot_be():
    cpu = torch.device("cpu")
    assert load_ops("triton", DEVICE, torch.float32, deterministic=True).batch_invariant
    assert not load_ops("triton", DEVICE, torch.float32).batch_invariant
    assert load_ops("cpu", cpu, torch.float32, deterministic=True).batch_invariant
    with pytest.raises(ValueError, match="use kernels=cpu or triton"):
        load_ops("reference", cpu, torch.float32, deterministic=True)

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.weights import DenseWeight, QuantizedWeight, Weight, concatenate

IN_FEATURES = 96


@st.composite
def quantized_weights(draw: st.DrawFn) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    signed = draw(st.booleans())
    bits = draw(st.integers(2, 8 if signed else 7))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    group_size = draw(st.sampled_from([16, 32, 48, 96]))
    num_rows = draw(st.integers(1, 5))
    groups = (num_rows, IN_FEATURES // group_size)
    return QuantizedWeight(
        codes=torch.randint(low, high, (num_rows, IN_FEATURES), generator=generator).to(torch.int8),
        scales=torch.randn(groups, generator=generator),
        mins=torch.randn(groups, generator=generator) if draw(st.booleans()) else None,
        group_size=group_size,
        bits=bits,
        signed=signed,
    )


@st.composite
def dense_weights(draw: st.DrawFn) -> DenseWeight:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    return DenseWeight(torch.randn(draw(st.integers(1, 5)), IN_FEATURES, generator=generator).to(dtype))


def as_float32(weight: Weight) -> torch.Tensor:
    return weight.dequantize().to(torch.float32)


@given(st.lists(quantized_weights() | dense_weights(), min_size=1, max_size=4))
def test_weights_side_by_side_are_exactly_the_weights(parts: list[Weight]) -> None:
    together = concatenate(parts)
    assert together.shape == (sum(part.shape[0] for part in parts), IN_FEATURES)
    assert torch.equal(as_float32(together), torch.cat([as_float32(part) for part in parts]))


@given(st.lists(quantized_weights(), min_size=1, max_size=4))
def test_codes_side_by_side_are_within_the_range_that_is_declared(parts: list[Weight]) -> None:
    together = concatenate(parts)
    if isinstance(together, QuantizedWeight):
        low, high = (-(2 ** (together.bits - 1)), 2 ** (together.bits - 1)) if together.signed else (0, 2**together.bits)
        assert together.bits <= 8
        assert low <= int(together.codes.min())
        assert int(together.codes.max()) < high


def quantized(group_size: int, bits: int, signed: bool, with_mins: bool) -> QuantizedWeight:
    groups = (2, IN_FEATURES // group_size)
    mins = torch.randn(groups) if with_mins else None
    return QuantizedWeight(torch.ones(2, IN_FEATURES, dtype=torch.int8), torch.randn(groups), mins, group_size, bits, signed)


def test_parts_of_different_quantised_forms_stay_quantised_where_one_form_holds_them_all() -> None:
    # q and k as Q4_K (unsigned, with minima), v as Q6_K (signed, groups of 16): what Q4_K_M files have.
    together = concatenate([quantized(32, 4, False, True), quantized(32, 4, False, True), quantized(16, 6, True, False)])
    assert isinstance(together, QuantizedWeight)
    assert (together.group_size, together.bits, together.signed) == (16, 6, True)
    alike = concatenate([quantized(32, 4, False, False), quantized(32, 4, False, False)])
    assert isinstance(alike, QuantizedWeight)
    assert (alike.group_size, alike.bits, alike.signed, alike.mins) == (32, 4, False, None)


def test_parts_that_no_quantised_form_holds_become_dense() -> None:
    assert isinstance(concatenate([quantized(32, 8, False, False), quantized(32, 4, True, False)]), DenseWeight)
    assert isinstance(concatenate([quantized(32, 4, True, False), quantized(48, 4, True, False)]), DenseWeight)


@given(quantized_weights() | dense_weights(), st.data())
def test_rows_and_orders_of_rows_are_those_of_the_matrix(weight: Weight, data: st.DataObject) -> None:
    num_rows = weight.shape[0]
    start = data.draw(st.integers(0, num_rows - 1))
    stop = data.draw(st.integers(start + 1, num_rows))
    order = torch.tensor(data.draw(st.permutations(range(num_rows))))
    assert torch.equal(weight.rows(start, stop).dequantize(), weight.dequantize()[start:stop])
    assert torch.equal(weight.select(order).dequantize(), weight.dequantize()[order])


def test_a_quantised_weight_is_its_codes_times_scales_plus_minima() -> None:
    weight = QuantizedWeight(
        codes=torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=torch.int8),
        scales=torch.tensor([[1.0, 10.0], [0.5, 2.0]]),
        mins=torch.tensor([[0.0, -1.0], [100.0, 0.0]]),
        group_size=2,
        bits=2,
        signed=False,
    )
    assert weight.dequantize().tolist() == [[0.0, 1.0, 19.0, 29.0], [101.5, 101.0, 2.0, 0.0]]

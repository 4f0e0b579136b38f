"""The CPU kernels other than attention against plain PyTorch, and their bits against themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from cpu_cases import CPU, REFERENCE, cpu_ops, random_quantized
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops import load_ops
from kernels.weights import DenseWeight, QuantizedWeight

ONE_THREAD, TWO_THREADS = cpu_ops(1), cpu_ops(2)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 150), st.integers(1, 100), st.booleans(),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)  # fmt: skip
def test_a_dense_product_matches_the_reference(rows, in_features, out_features, with_bias, dtype):
    generator = generator_of(rows)
    weight = DenseWeight(torch.randn(out_features, in_features, generator=generator).to(dtype))
    bias = torch.randn(out_features, generator=generator) if with_bias else None
    x = torch.randn(rows, in_features, generator=generator)
    expected = REFERENCE.linear(x, REFERENCE.pack_linear(weight, bias))
    actual = TWO_THREADS.linear(x, TWO_THREADS.pack_linear(weight, bias))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


def emulate(x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """The product with activations quantised as the kernels promise, everything after that in float64."""
    group = 32 if weight.group_size % 32 == 0 else 16
    grouped = x.view(x.shape[0], -1, group)
    largest = grouped.abs().amax(-1, keepdim=True)
    tops = torch.full_like(largest, 127 if weight.bits <= 4 else 32767)
    if weight.bits <= 4:
        tops[largest > 4 * largest.mean(1, keepdim=True)] = 127 * 256  # of groups that stand out
    # Not `tops / largest`: PyTorch would multiply by a rounded reciprocal.
    inverse = torch.where(largest > 0, tops.div(largest), 0)
    codes = (grouped * inverse).round()
    rounded = (codes.double() * (largest / tops).double()).view(x.shape)
    out = rounded @ weight.dequantize().double().T
    return (out if bias is None else out + bias.double()).float()


FORMS = [
    # bits, signed, group_size, with_mins, half_scales
    (4, False, 32, True, True),  # Q4_1
    (4, True, 32, False, True),  # Q4_0
    (8, True, 32, False, True),  # Q8_0
    (5, True, 32, False, True),  # Q5_0
    (5, False, 32, True, False),  # Q5_K
    (6, True, 16, False, False),  # Q6_K
    (2, False, 16, True, False),  # Q2_K
    (3, True, 16, False, False),  # Q3_K
    (8, False, 64, True, True),
    (4, False, 128, True, True),
    (4, False, 48, True, True),
]


@pytest.mark.parametrize(("bits", "signed", "group_size", "with_mins", "half_scales"), FORMS)
def test_a_quantised_product_is_exact_but_for_the_rounding_of_activations(bits, signed, group_size, with_mins, half_scales):
    generator = generator_of(bits * group_size)
    for rows, groups, out_features in ((1, 3, 16), (5, 1, 7), (9, 6, 61), (70, 2, 40)):
        weight = random_quantized(out_features, groups * group_size, generator, bits, signed, group_size, with_mins, half_scales)
        bias = torch.randn(out_features, generator=generator) if rows > 1 else None
        x = torch.randn(rows, groups * group_size, generator=generator) * 3
        x[0, :group_size] = 0
        x[rows // 2 :, -1] *= 30  # a feature that stands out in some of the rows
        actual = TWO_THREADS.linear(x, TWO_THREADS.pack_linear(weight, bias))
        torch.testing.assert_close(actual, emulate(x, weight, bias), rtol=1e-5, atol=5e-5)


def test_extreme_codes_do_not_saturate():
    for bits, signed in ((4, False), (8, True), (8, False)):
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        for code in (low, high):
            codes = torch.full((16, 64), code).to(torch.int8 if signed or bits < 8 else torch.uint8)
            weight = QuantizedWeight(codes, torch.ones(16, 2), None, 32, bits, signed)
            for sign in (1.0, -1.0):
                x = torch.full((2, 64), sign)
                actual = TWO_THREADS.linear(x, TWO_THREADS.pack_linear(weight, None))
                torch.testing.assert_close(actual, torch.full((2, 16), sign * code * 64), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("form", FORMS[:1] + FORMS[2:3] + FORMS[5:6], ids=["4 bits", "8 bits", "groups of 16"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_an_activation_that_is_not_finite_shows_in_its_row_alone(form, number):
    bits, signed, group_size, with_mins, half_scales = form
    weight = TWO_THREADS.pack_linear(random_quantized(20, 96, generator_of(1), bits, signed, group_size, with_mins, half_scales), None)
    x = torch.randn(96, 96, generator=generator_of(2))
    expected = TWO_THREADS.linear(x, weight)
    damaged = x.clone()
    damaged.fill_diagonal_(number)
    assert not TWO_THREADS.linear(damaged, weight).isfinite().any()
    x[40, 7] = number
    actual = TWO_THREADS.linear(x, weight)
    assert torch.equal(actual[:40], expected[:40])
    assert torch.equal(actual[41:], expected[41:])


@pytest.mark.parametrize("form", ["dense", *FORMS])
def test_a_row_of_a_product_has_the_same_bits_whatever_the_other_rows_and_threads(form):
    generator = generator_of(3)
    if form == "dense":
        weight = DenseWeight(torch.randn(75, 192, generator=generator))
    else:
        bits, signed, group_size, with_mins, half_scales = form
        weight = random_quantized(75, 8 * group_size, generator, bits, signed, group_size, with_mins, half_scales)
    x = torch.randn(64, weight.shape[1], generator=generator)
    x[::3, 5] *= 40  # groups that stand out in some of the rows
    x[7:20, -1] *= 40
    whole = TWO_THREADS.linear(x, TWO_THREADS.pack_linear(weight, None))
    packed_alone = ONE_THREAD.pack_linear(weight, None)
    for rows in range(1, 65):
        start = (64 - rows) // 2
        assert torch.equal(TWO_THREADS.linear(x[start : start + rows], packed_alone), whole[start : start + rows]), rows
        if rows % 9 == 0:
            assert torch.equal(ONE_THREAD.linear(x[:rows], packed_alone), whole[:rows]), rows


@pytest.mark.parametrize("form", ["dense", *FORMS])
def test_an_embedding_reads_the_rows_of_the_packed_matrix(form):
    generator = generator_of(4)
    if form == "dense":
        weight = DenseWeight(torch.randn(50, 70, generator=generator))
    else:
        bits, signed, group_size, with_mins, half_scales = form
        weight = random_quantized(50, 2 * group_size, generator, bits, signed, group_size, with_mins, half_scales)
    ids = torch.randint(0, 50, (33,), dtype=torch.int32, generator=generator)
    actual = TWO_THREADS.embedding(ids, TWO_THREADS.pack_linear(weight, None))
    torch.testing.assert_close(actual, weight.dequantize().float()[ids.long()], rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 200), st.integers(0, 1000))
def test_norms_and_activations_match_the_reference_and_give_each_row_its_own_bits(rows, features, seed):
    generator = generator_of(seed)
    x, residual = torch.randn(2, rows, features, generator=generator) * 4
    weight = torch.randn(features, generator=generator)
    gate_up = torch.randn(rows, 2 * features, generator=generator) * 10
    gate_up[0, 0] = -200.0
    expected_residual, before = residual.clone(), x.clone()
    expected, _ = REFERENCE.add_rms_norm(x, expected_residual, weight, 1e-5)
    first = TWO_THREADS.add_rms_norm(x[:1], residual[:1].clone(), weight, 1e-5)[0]
    normed, returned = TWO_THREADS.add_rms_norm(x, residual, weight, 1e-5)
    assert returned is residual
    assert torch.equal(residual, expected_residual)
    assert torch.equal(first[0], normed[0])
    torch.testing.assert_close(normed, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(TWO_THREADS.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)
    for name in ("silu_and_mul", "gelu_tanh_and_mul"):
        actual = getattr(TWO_THREADS, name)(gate_up)
        torch.testing.assert_close(actual, getattr(REFERENCE, name)(gate_up), rtol=1e-5, atol=2e-5)
        assert torch.equal(getattr(ONE_THREAD, name)(gate_up[-1:]), actual[-1:])


def test_rows_are_gathered():
    x = torch.randn(9, 31)
    rows = torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    assert torch.equal(TWO_THREADS.gather_rows(x, rows), x[rows.long()])


def test_no_rows_give_no_rows():
    packed = TWO_THREADS.pack_linear(random_quantized(20, 64, generator_of(0)), None)
    assert TWO_THREADS.linear(torch.empty(0, 64), packed).shape == (0, 20)
    assert TWO_THREADS.rms_norm(torch.empty(0, 64), torch.ones(64), 1e-5).shape == (0, 64)
    assert TWO_THREADS.embedding(torch.empty(0, dtype=torch.int32), packed).shape == (0, 64)


def test_rows_of_another_type_or_width_are_refused():
    packed = TWO_THREADS.pack_linear(DenseWeight(torch.randn(4, 8)), None)
    for x in (torch.randn(2, 8).double(), torch.randn(2, 9), torch.randn(8, 2).T):
        with pytest.raises(ValueError, match="contiguous float32 rows of 8"):
            TWO_THREADS.linear(x, packed)


def test_a_forked_child_can_compute():
    """Threads do not survive fork(): the pool must notice."""
    script = """
import os, sys, torch
sys.path.insert(0, "tests/kernels")
from cpu_cases import cpu_ops
ops = cpu_ops(2)
x = torch.randn(7, 64)
before = ops.silu_and_mul(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ops.silu_and_mul(x), before) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(ops.silu_and_mul(x), before)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_several_python_threads_may_call_at_once():
    from concurrent.futures import ThreadPoolExecutor

    x = torch.randn(40, 256)
    expected = ONE_THREAD.silu_and_mul(x)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: TWO_THREADS.silu_and_mul(x), range(200)))
    assert all(torch.equal(result, expected) for result in results)


def test_idle_threads_use_no_processor_time():
    import time

    TWO_THREADS.silu_and_mul(torch.randn(4, 64))
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.1


def test_without_a_compiler_the_reference_serves_and_one_warning_says_so(tmp_path, monkeypatch):
    import kernels.cpu.build as build
    from kernels.cpu import load_cpu_ops
    from kernels.reference import ReferenceOps

    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match="install gcc or clang"):
        assert isinstance(load_cpu_ops(CPU, torch.float32), ReferenceOps)
    with pytest.warns(UserWarning, match="may depend on the load"), pytest.raises(ValueError, match="cannot be deterministic: install gcc"):
        load_ops("auto", CPU, torch.float32, deterministic=True)
    with pytest.raises(ValueError, match="do not run on cuda"):
        load_cpu_ops(torch.device("cuda"), torch.float32)

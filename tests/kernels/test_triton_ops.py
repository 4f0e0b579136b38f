"""Triton's other operations against plain PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_cases import DEVICE, INTERPRETED, PRODUCT_DTYPES, assert_close, both_ops, make_contexts, noise, place

from kernels.batch import AttentionShape, QkNorm
from kernels.kv_cache import decode_rows
from kernels.reference import ReferenceOps
from kernels.triton import TritonOps, activation, norm, rotary
from kernels.weights import DenseWeight, QuantizedWeight

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@st.composite
def rotary_cases(draw):
    head_size = draw(st.sampled_from([64, 80, 96, 128]))
    kv_heads = draw(st.integers(1, 3))
    rotary_dim = draw(st.sampled_from([None, head_size // 2, 20]))
    shape = AttentionShape(kv_heads * draw(st.integers(1, 8)), kv_heads, head_size, 1.0, rotary_dim=rotary_dim)
    seqs = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4))
    cache_dtype = draw(st.sampled_from([*DTYPES, torch.float8_e4m3fn, torch.int8, torch.int8]))
    dtypes = draw(st.sampled_from(PRODUCT_DTYPES if cache_dtype == torch.int8 else DTYPES)), cache_dtype
    return shape, seqs, draw(st.sampled_from([8, 16, 32])), dtypes, draw(st.booleans()), draw(st.integers(0, 1000))


@settings(max_examples=30, deadline=None)
@given(rotary_cases())
def test_rotary_and_write_kv_agrees_with_the_reference_and_writes_nothing_else(case):
    shape, seqs, block_size, (dtype, cache_dtype), has_norm, seed = case
    generator = torch.Generator().manual_seed(seed)
    qk_norm = QkNorm(noise(generator, shape.head_size), noise(generator, shape.head_size), 1e-6) if has_norm else None
    contexts = make_contexts(generator, shape, [context + query for context, query in seqs], cache_dtype)
    batch, cache = place(generator, contexts, [query for _, query in seqs], block_size)
    batch.slot_mapping[torch.rand(batch.num_tokens, generator=generator).to(DEVICE) < 0.2] = -1
    qkv = noise(generator, batch.num_tokens, shape.qkv_size, dtype=dtype)
    cos_sin = noise(generator, 64, shape.rotary_dim or shape.head_size)
    expected_qkv, expected_cache = qkv.clone(), cache.clone()
    steps = 4 if has_norm else 1  # one more rounding, and then products with factors beyond 1
    ReferenceOps(DEVICE, dtype).rotary_and_write_kv(expected_qkv, expected_cache, cos_sin, batch, shape, qk_norm)
    rotary.rotary_and_write_kv(qkv, cache, cos_sin, batch.positions, batch.slot_mapping, shape, qk_norm)
    assert_close(qkv, expected_qkv, dtype, steps)
    assert_rows_close(cache, expected_cache, shape.head_size, dtype, steps)
    # Slots that this step does not write keep their bits, the NaN of empty ones included.
    cache, expected_cache = cache.float(), expected_cache.float()
    untouched = torch.ones(cache.shape[0] * block_size, dtype=torch.bool, device=DEVICE)
    untouched[batch.slot_mapping[batch.slot_mapping >= 0]] = False
    blocks, offsets = untouched.nonzero().squeeze(1) // block_size, untouched.nonzero().squeeze(1) % block_size
    torch.testing.assert_close(cache[blocks, :, :, offsets], expected_cache[blocks, :, :, offsets], rtol=0, atol=0, equal_nan=True)


def assert_rows_close(cache: torch.Tensor, expected: torch.Tensor, head_size: int, dtype: torch.dtype, steps: int) -> None:
    """Up to the rounding of `dtype`, so many times, and the cache's own."""
    tolerances = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float8_e4m3fn: 0.126}
    if cache.dtype == torch.int8:
        codes, expected_codes = (rows[..., :head_size].int() for rows in (cache, expected))
        assert int((codes - expected_codes).abs().max()) <= (2 if dtype == torch.bfloat16 else 1) * steps
        cache, expected = (rows[..., head_size:].contiguous().view(torch.float32) for rows in (cache, expected))
        tolerance = max(tolerances[dtype] * steps, 1e-4)
    else:
        tolerance = max(tolerances[dtype], tolerances[cache.dtype]) * steps
    torch.testing.assert_close(cache.float(), expected.float(), rtol=tolerance, atol=min(tolerance, 3e-2 * steps), equal_nan=True)


def test_a_head_that_is_no_number_makes_the_scale_of_its_int8_row_none():
    shape = AttentionShape(1, 1, 64, 1.0)
    batch, cache = place(torch.Generator(), [torch.zeros(2, 1, 4, 68, dtype=torch.int8, device=DEVICE)], [4], 16)
    qkv = noise(torch.Generator().manual_seed(0), 4, shape.qkv_size)
    qkv[0, 70], qkv[1, 130], qkv[2] = torch.nan, torch.inf, 0.0
    cos_sin = torch.cat((torch.ones(8, 32), torch.zeros(8, 32)), dim=1).to(DEVICE)
    both_ops(torch.float32)[0].rotary_and_write_kv(qkv, cache, cos_sin, batch, shape)
    rows = decode_rows(cache[batch.slot_mapping // 16, :, 0, batch.slot_mapping % 16], 64)
    assert rows.isnan().any(-1).tolist() == [[True, False], [False, True], [False, False], [False, False]]
    assert not rows[2].any()
    torch.testing.assert_close(rows[3], qkv[3, 64:].view(2, 64), rtol=0, atol=0.05)


def test_int8_rows_of_heads_that_no_scale_can_follow_are_refused():
    shape = AttentionShape(1, 1, 18, 1.0)
    batch, cache = place(torch.Generator(), [torch.zeros(2, 1, 4, 22, dtype=torch.int8, device=DEVICE)], [4], 16)
    with pytest.raises(ValueError, match="only multiples of 4"):
        both_ops(torch.float32)[0].rotary_and_write_kv(torch.zeros(4, 54, device=DEVICE), cache, torch.zeros(8, 18), batch, shape)


def test_heads_of_q_and_k_are_normed_before_they_are_rotated():
    shape = AttentionShape(6, 2, 64, 1.0)
    generator = torch.Generator().manual_seed(0)
    batch, cache = place(generator, make_contexts(generator, shape, [20, 3], torch.float32), [5, 1], 16)
    qkv, cos_sin = noise(generator, 6, shape.qkv_size), noise(generator, 64, 64)
    qk_norm = QkNorm(noise(generator, 64), noise(generator, 64), 1e-6)
    expected_qkv, expected_cache = qkv.clone(), cache.clone()
    ReferenceOps(DEVICE, torch.float32).rotary_and_write_kv(expected_qkv, expected_cache, cos_sin, batch, shape, qk_norm)
    TritonOps(DEVICE, torch.float32).rotary_and_write_kv(qkv, cache, cos_sin, batch, shape, qk_norm)
    assert_close(qkv, expected_qkv, torch.float32)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_keys_too_large_for_8_bit_floats_are_cached_as_the_largest():
    shape = AttentionShape(1, 1, 64, 1.0)
    batch, cache = place(torch.Generator(), [torch.zeros(2, 1, 3, 64).to(DEVICE, torch.float8_e4m3fn)], [3], 16)
    qkv = torch.full((3, shape.qkv_size), 1000.0, device=DEVICE) * torch.tensor([[1.0], [-1.0], [0.001]], device=DEVICE)
    cos_sin = torch.cat((torch.ones(8, 32), torch.zeros(8, 32)), dim=1).to(DEVICE)
    both_ops(torch.float32)[0].rotary_and_write_kv(qkv, cache, cos_sin, batch, shape)
    block, offset = batch.slot_mapping // 16, batch.slot_mapping % 16
    assert (cache.float()[block, :, 0, offset] == torch.tensor([448.0, -448.0, 1.0], device=DEVICE)[:, None, None]).all()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 40), st.sampled_from([8, 64, 96, 576, 2048, 3000]), st.integers(0, 1000))
def test_norms_agree_with_the_reference(dtype, num_rows, n, seed):
    generator = torch.Generator().manual_seed(seed)
    x, residual = noise(generator, num_rows, n, dtype=dtype), noise(generator, num_rows, n + 8, dtype=dtype)[:, :n]
    weight = noise(generator, n)  # checkpoints may keep norms in another type than the activations
    reference = ReferenceOps(DEVICE, dtype)
    assert_close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), dtype)
    expected_residual = residual.clone()
    expected, _ = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
    actual, returned = norm.add_rms_norm(x, residual, weight, 1e-5)
    assert returned is residual
    assert_close(residual, expected_residual, dtype)
    assert_close(actual, expected, dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # exp(-x) of the sigmoid, rightly infinite
@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 40), st.sampled_from([8, 64, 96, 1024, 1536]), st.integers(0, 1000))
def test_gated_activations_agree_with_the_reference(dtype, num_rows, n, seed):
    gate_up = 4 * noise(torch.Generator().manual_seed(seed), num_rows, 2 * n, dtype=dtype)
    reference = ReferenceOps(DEVICE, dtype)
    assert_close(activation.silu_and_mul(gate_up), reference.silu_and_mul(gate_up), dtype)
    assert_close(activation.gelu_tanh_and_mul(gate_up), reference.gelu_tanh_and_mul(gate_up), dtype)


@pytest.mark.parametrize("n", [96, 576])
def test_a_row_of_a_norm_has_the_same_bits_whatever_the_other_rows_are(n):
    x = noise(torch.Generator().manual_seed(0), 50, n, dtype=torch.float16)
    weight = noise(torch.Generator().manual_seed(1), n)
    together = norm.rms_norm(x, weight, 1e-5)
    for row in (0, 1, 31, 49):
        assert torch.equal(norm.rms_norm(x[row : row + 1], weight, 1e-5)[0], together[row])


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES, ids=str)
def test_copied_blocks_are_equal_and_the_others_as_before(dtype):
    generator = torch.Generator().manual_seed(0)
    shape = AttentionShape(2, 2, 96, 1.0)
    _, cache = place(generator, make_contexts(generator, shape, [64, 64], dtype), [1, 1], 16)
    cache = torch.nan_to_num(cache)
    expected = cache.clone()
    pairs = torch.tensor([[0, 5], [2, 1], [2, 4]], device=DEVICE)
    ops, reference = both_ops(dtype)
    ops.copy_blocks(cache, cache, pairs)
    reference.copy_blocks(expected, expected, pairs)
    assert torch.equal(cache, expected)
    ops.copy_blocks(cache, cache, pairs[:0])
    assert torch.equal(cache, expected)
    other = torch.zeros(cache.shape, dtype=dtype, device=DEVICE)  # whose blocks lie closer together
    gathered = other.clone()
    ops.copy_blocks(cache, other, pairs)
    reference.copy_blocks(expected, gathered, pairs)
    assert torch.equal(other, gathered)


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES, ids=str)
def test_linear_embedding_and_gather_agree_with_the_reference(dtype):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (24, 64), generator=generator, dtype=torch.int8)
    scales, mins = torch.rand(24, 2, generator=generator) / 16, torch.randn(24, 2, generator=generator) / 16
    for weight in (DenseWeight(torch.randn(24, 64, generator=generator)), QuantizedWeight(codes, scales, mins, 32, 4, False)):
        for bias in (None, torch.randn(24, generator=generator)):
            x = noise(generator, 5, 64, dtype=dtype)
            rows = torch.tensor([3, 3, 0], dtype=torch.int32, device=DEVICE)
            results = []
            for ops in both_ops(dtype):
                packed = ops.pack_linear(weight, bias)
                results.append((ops.linear(x, packed), ops.embedding(rows, packed), ops.gather_rows(x, rows)))
            for actual, expected in zip(*results, strict=True):
                assert_close(actual, expected, dtype)


def test_log_probabilities_do_not_depend_on_the_order_in_which_the_vocabulary_is_summed():
    """On CUDA that order may change with a row's place among the others."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * noise(generator, 1, 5000)
    orders = [torch.randperm(5000, generator=generator) for _ in range(5)]
    ops, _ = both_ops(torch.float32)
    places = [int((order == 7).nonzero()) for order in orders]
    chosen = [
        ops.logprobs(logits[:, order.to(DEVICE)], np.array([place]), np.zeros(1, np.int32)).chosen[0]
        for order, place in zip(orders, places, strict=True)
    ]
    assert set(chosen) == {ops.logprobs(logits, np.array([7]), np.zeros(1, np.int32)).chosen[0]}
    assert chosen[0] == pytest.approx(float(logits.double().log_softmax(-1)[0, 7]), abs=1e-5)


def test_no_operation_of_a_step_waits_for_the_device(monkeypatch):
    """Reading a tensor on the host would stall the GPU, and cannot be captured in a CUDA graph."""
    generator = torch.Generator().manual_seed(0)
    shape = AttentionShape(4, 2, 64, 0.125)
    ops, _ = both_ops(torch.float16)
    batch, cache = place(generator, make_contexts(generator, shape, [600, 20, 3], torch.float16), [1, 4, 1], 16)
    qkv, cos_sin = noise(generator, 6, shape.qkv_size, dtype=torch.float16), noise(generator, 640, 64)
    table = ops.pack_linear(DenseWeight(torch.randn(8, 64, generator=generator)), None)
    weight = noise(generator, 64)

    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read on the host")

    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "__float__", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    x = ops.embedding(batch.token_ids, table)
    x, residual = ops.add_rms_norm(ops.rms_norm(x, weight, 1e-5), x, weight, 1e-5)
    ops.rotary_and_write_kv(qkv, cache, cos_sin, batch, shape)
    ops.paged_attention(qkv, cache, batch, shape)
    ops.silu_and_mul(ops.gather_rows(ops.linear(residual, table), batch.logits_indices))


def test_bfloat16_is_refused_just_where_the_interpreter_would_get_it_wrong():
    if INTERPRETED:
        with pytest.raises(ValueError, match="bfloat16"):
            TritonOps(DEVICE, torch.bfloat16)
    else:
        assert TritonOps(DEVICE, torch.bfloat16).dtype == torch.bfloat16

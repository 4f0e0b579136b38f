"""Triton's paged attention against plain PyTorch, and its bits against themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton_cases import DEVICE, INTERPRETED, OUTSIDE, PRODUCT_DTYPES, assert_close, both_ops, make_contexts, noise, place

from kernels.batch import AttentionShape
from kernels.triton import attention

CACHE_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.int8]
ALL_KINDS = [*((dtype, dtype) for dtype in PRODUCT_DTYPES), (torch.float16, torch.int8)]
SHORT = AttentionShape(num_heads=6, num_kv_heads=2, head_size=64, scale=0.125)


@st.composite
def attention_cases(draw):
    kv_heads = draw(st.integers(1, 2))
    head_size = draw(st.sampled_from([64, 80, 96, 128]))
    window = draw(st.sampled_from([None, None, 1, 7, 64, 100]))
    shape = AttentionShape(kv_heads * draw(st.integers(1, 8)), kv_heads, head_size, head_size**-0.5, window)
    seqs = draw(st.lists(st.tuples(st.integers(0, 200), st.sampled_from([1, 1, 2, 17, 40])), min_size=1, max_size=3))
    dtypes = draw(st.tuples(st.sampled_from(PRODUCT_DTYPES), st.sampled_from(CACHE_DTYPES)))
    return shape, seqs, draw(st.sampled_from([8, 16, 32])), dtypes, draw(st.sampled_from([64, 512])), draw(st.integers(0, 1000))


HALF = (torch.float16, torch.float16)
EIGHT = (torch.float16, torch.float8_e4m3fn)
INT8 = (torch.float16, torch.int8)


@settings(max_examples=15, deadline=None)
@given(attention_cases())
@example((SHORT, [(0, 1)], 16, HALF, 512, 0))  # a context of one token
@example((SHORT, [(63, 1), (127, 1), (64, 64)], 16, HALF, 64, 0))  # blocks, tiles and splits are all full
@example((SHORT, [(100, 1), (30, 70)], 16, EIGHT, 64, 0))
@example((SHORT, [(200, 1), (30, 70)], 16, INT8, 64, 0))
@example((SHORT, [(64, 1), (128, 1), (65, 64)], 16, HALF, 64, 0))  # ... and have one token too many
@example((AttentionShape(7, 1, 64, 0.125, 100), [(250, 1), (200, 30)], 8, HALF, 64, 0))  # the window starts splits after the first
def test_attention_agrees_with_the_reference(case):
    shape, seqs, block_size, (dtype, cache_dtype), split, seed = case
    generator = torch.Generator().manual_seed(seed)
    contexts = make_contexts(generator, shape, [context + query for context, query in seqs], cache_dtype)
    batch, cache = place(generator, contexts, [query for _, query in seqs], block_size)
    qkv = noise(generator, batch.num_tokens, shape.qkv_size, dtype=dtype)
    ops, reference = both_ops(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SPLIT", split)
        actual = ops.paged_attention(qkv, cache, batch, shape)
    assert_close(actual, reference.paged_attention(qkv, cache, batch, shape), dtype)


@pytest.mark.parametrize(("dtype", "cache_dtype"), ALL_KINDS)
@pytest.mark.parametrize("window", [None, 100])
def test_a_decode_has_the_same_bits_alone_and_among_others(dtype, cache_dtype, window, monkeypatch):
    if cache_dtype == torch.int8:  # the heads of several sequences are rotated by one product
        add_in_one_order(monkeypatch)
    monkeypatch.setattr(attention, "SPLIT", 64)
    shape = AttentionShape(6, 2, 64, 0.125, window)
    generator = torch.Generator().manual_seed(1)
    seq_lens, query_lens = [300, 5, 129, 64, 200], [1, 1, 1, 1, 40]
    contexts = make_contexts(generator, shape, seq_lens, cache_dtype)
    queries = [noise(generator, query_len, shape.qkv_size, dtype=dtype) for query_len in query_lens]
    alone = [attend(generator, [context], [query], shape, 16)[0] for context, query in zip(contexts, queries, strict=True)]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [3, 0]):
        together = attend(generator, [contexts[s] for s in order], [queries[s] for s in order], shape, 16)
        for s, result in zip(order, together, strict=True):
            assert torch.equal(result, alone[s])


def test_bits_do_not_depend_on_how_many_sequences_fit_the_buffer(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT", 64)
    generator = torch.Generator().manual_seed(2)
    contexts = make_contexts(generator, SHORT, [300, 5, 129, 64, 200], torch.float16)
    batch, cache = place(generator, contexts, [1] * 5, 16)
    qkv = noise(generator, 5, SHORT.qkv_size, dtype=torch.float16)
    ops, _ = both_ops(torch.float16)
    at_once = ops.paged_attention(qkv, cache, batch, SHORT)
    monkeypatch.setattr(attention, "PARTIAL_FLOATS", 2 * SHORT.num_heads * 5 * (SHORT.head_size + 2))
    two_by_two = ops.paged_attention(qkv, cache, batch, SHORT)
    assert torch.equal(at_once, two_by_two)


def test_a_context_that_the_buffer_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT", 64)
    monkeypatch.setattr(attention, "PARTIAL_FLOATS", 100)
    generator = torch.Generator().manual_seed(2)
    batch, cache = place(generator, make_contexts(generator, SHORT, [300], torch.float16), [1], 16)
    ops, _ = both_ops(torch.float16)
    with pytest.raises(ValueError, match="max_model_len"):
        ops.paged_attention(noise(generator, 1, SHORT.qkv_size, dtype=torch.float16), cache, batch, SHORT)


@pytest.mark.parametrize(("dtype", "cache_dtype"), ALL_KINDS)
@pytest.mark.parametrize("window", [None, 90])
def test_a_prompt_has_the_same_bits_however_it_is_cut(dtype, cache_dtype, window, monkeypatch):
    """Chunks of one token are decodes: the decode and the prefill kernel give the same bits."""
    monkeypatch.setattr(attention, "SPLIT", 128)
    add_in_one_order(monkeypatch)
    shape = AttentionShape(4, 2, 64, 0.125, window)
    generator = torch.Generator().manual_seed(3)
    length = 280
    (context,) = make_contexts(generator, shape, [length], cache_dtype)
    queries = noise(generator, length, shape.qkv_size, dtype=dtype)
    (whole,) = attend(generator, [context], [queries], shape, 16)
    for cuts in ([0, 1, 128, 129, 210, 280], [0, 100, 279, 280]):
        for start, stop in itertools.pairwise(cuts):
            (chunk,) = attend(generator, [context[:, :, :stop]], [queries[start:stop]], shape, 8)
            assert torch.equal(chunk, whole[start:stop]), f"positions {start} to {stop}"


def test_blocks_before_the_window_are_not_read(monkeypatch):
    """The engine may have given them to somebody else."""
    monkeypatch.setattr(attention, "SPLIT", 128)
    shape = AttentionShape(4, 2, 64, 0.125, 20)
    generator = torch.Generator().manual_seed(6)
    batch, cache = place(generator, make_contexts(generator, shape, [190, 200], torch.float16), [1, 30], 8)
    qkv = noise(generator, 31, shape.qkv_size, dtype=torch.float16)
    ops, reference = both_ops(torch.float16)
    expected = reference.paged_attention(qkv, cache, batch, shape)
    batch.block_tables[0, : (190 - 20) // 8] = OUTSIDE
    batch.block_tables[1, : (200 - 30 - 20 + 1) // 8] = OUTSIDE
    assert_close(ops.paged_attention(qkv, cache, batch, shape), expected, torch.float16)


def test_padding_sequences_without_tokens_change_nothing_and_give_zeros():
    """A captured CUDA graph runs with a batch padded to a fixed size."""
    generator = torch.Generator().manual_seed(4)
    batch, cache = place(generator, make_contexts(generator, SHORT, [20, 1], torch.float16), [1, 1], 16)
    qkv = noise(generator, 2, SHORT.qkv_size, dtype=torch.float16)
    ops, reference = both_ops(torch.float16)
    expected = reference.paged_attention(qkv, cache, batch, SHORT)
    batch.seq_lens[1] = 0
    batch.block_tables[1] = OUTSIDE
    actual = ops.paged_attention(qkv, cache, batch, SHORT)
    assert_close(actual[0], expected[0], torch.float16)
    assert torch.equal(actual[1], torch.zeros_like(actual[1]))


def test_a_longer_bound_on_the_context_changes_no_bits(monkeypatch):
    """A captured CUDA graph runs with the longest context there may be."""
    monkeypatch.setattr(attention, "SPLIT", 64)
    generator = torch.Generator().manual_seed(5)
    batch, cache = place(generator, make_contexts(generator, SHORT, [100, 7], torch.float16), [1, 1], 16)
    qkv = noise(generator, 2, SHORT.qkv_size, dtype=torch.float16)
    ops, _ = both_ops(torch.float16)
    exact = ops.paged_attention(qkv, cache, batch, SHORT)
    batch.max_seq_len = 1000
    assert torch.equal(ops.paged_attention(qkv, cache, batch, SHORT), exact)


def add_in_one_order(monkeypatch) -> None:
    """In the interpreter too: BLAS adds in an order that depends on a row's place in the matrix, as a tensor core does not."""
    if INTERPRETED:
        monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("ik,kj->ij", a, b, dtype=dtype))


def attend(generator, contexts, queries, shape, block_size) -> list[torch.Tensor]:
    """Attention of one step over contexts placed anew, in shuffled blocks: the output of each sequence."""
    query_lens = [query.shape[0] for query in queries]
    batch, cache = place(generator, contexts, query_lens, block_size)
    ops, _ = both_ops(queries[0].dtype)
    out = ops.paged_attention(torch.cat(queries).to(DEVICE), cache, batch, shape)
    return list(out.split(query_lens))

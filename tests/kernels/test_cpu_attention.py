"""The CPU kernels' rotary embedding, cache write and paged attention against plain PyTorch, and their bits against themselves."""

from __future__ import annotations

import pytest
import torch
from cpu_cases import REFERENCE, cpu_ops, make_batch, make_cache, make_cos_sin
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.kv_cache import decode_rows, rotate_rows

ONE_THREAD, TWO_THREADS = cpu_ops(1), cpu_ops(2)


@st.composite
def attention_cases(draw):
    kv_heads = draw(st.integers(1, 3))
    group = draw(st.integers(1, 9))
    head_size = draw(st.sampled_from([64, 80, 128, 20]))
    window = draw(st.sampled_from([None, None, 1, 7, 40, 300]))
    rotary_dim = draw(st.sampled_from([None, head_size // 2]))
    shape = AttentionShape(kv_heads * group, kv_heads, head_size, head_size**-0.5, window, rotary_dim)
    block_size = draw(st.sampled_from([8, 16, 32]))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int8]))
    seqs = draw(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([1, 1, 2, 17, 70])), min_size=1, max_size=5))
    return shape, block_size, dtype, seqs, draw(st.integers(0, 1000))


@settings(max_examples=20, deadline=None)
@given(attention_cases())
def test_attention_and_cache_write_match_the_reference(case):
    shape, block_size, dtype, seqs, seed = case
    generator = torch.Generator().manual_seed(seed)
    batch = make_batch(seqs, block_size, 400, generator)
    cache = make_cache(400, shape, block_size, dtype, generator)
    qkv = torch.randn(batch.num_tokens, shape.qkv_size, generator=generator)
    batch.slot_mapping[0] = -1  # this token's key stays what the cache holds already
    cos_sin = make_cos_sin(512, shape.rotary_dim or shape.head_size)
    expected_qkv, expected_cache = qkv.clone(), cache.clone()
    norms = torch.rand(2, shape.head_size, generator=generator) + 0.5
    qk_norm = QkNorm(norms[0], norms[1], 1e-6) if seed % 2 else None
    REFERENCE.rotary_and_write_kv(expected_qkv, expected_cache, cos_sin, batch, shape, qk_norm)
    TWO_THREADS.rotary_and_write_kv(qkv, cache, cos_sin, batch, shape, qk_norm)
    torch.testing.assert_close(qkv, expected_qkv, rtol=1e-5, atol=1e-5)
    rtol, atol = {torch.bfloat16: (1e-2, 1e-4), torch.int8: (1e-5, 0.05)}.get(dtype, (2e-3, 1e-4))  # a code may be the one beside it
    written, expected_rows = (decode_rows(rows, shape.head_size) for rows in (cache, expected_cache))
    torch.testing.assert_close(written, expected_rows, rtol=rtol, atol=atol)
    expected = REFERENCE.paged_attention(qkv, cache, batch, shape)
    actual = TWO_THREADS.paged_attention(qkv, cache, batch, shape)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)
    assert torch.equal(actual, ONE_THREAD.paged_attention(qkv, cache, batch, shape))


def one_sequence(length: int, shape: AttentionShape, block_size: int, dtype: torch.dtype):
    """The queries of a sequence's every position, its cache filled, and a batch that computes all of it at once."""
    generator = torch.Generator().manual_seed(length)
    num_blocks = 3 * -(-length // block_size)
    batch = make_batch([(0, length)], block_size, num_blocks, generator)
    cache = make_cache(num_blocks, shape, block_size, dtype, generator)
    return torch.randn(length, shape.qkv_size, generator=generator), cache, batch


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    """The step that computes positions [start, stop) of a one-sequence batch."""
    return Batch(
        num_tokens=stop - start,
        num_seqs=1,
        max_query_len=stop - start,
        max_seq_len=stop,
        token_ids=batch.token_ids[start:stop],
        positions=batch.positions[start:stop],
        slot_mapping=batch.slot_mapping[start:stop],
        query_start_loc=torch.tensor([0, stop - start], dtype=torch.int32),
        seq_lens=torch.tensor([stop], dtype=torch.int32),
        block_tables=batch.block_tables,
        logits_indices=torch.tensor([stop - start - 1], dtype=torch.int32),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("window", [None, 333])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(9, 3, 64), (4, 4, 80), (8, 1, 128)])
def test_a_decode_a_chunk_and_a_whole_prefill_give_the_same_bits(dtype, window, heads, kv_heads, head_size):
    shape = AttentionShape(heads, kv_heads, head_size, 0.1, window)
    length = 900  # several segments, so that decodes are divided over threads
    qkv, cache, batch = one_sequence(length, shape, 16, dtype)
    whole = TWO_THREADS.paged_attention(qkv, cache, batch, shape)
    for ops in (ONE_THREAD, TWO_THREADS):
        for chunk in (7, 64, 128):
            for start in range(0, length, chunk):
                if start > 200 and start < 700:
                    continue
                stop = min(start + chunk, length)
                part = ops.paged_attention(qkv[start:stop].contiguous(), cache, part_of(batch, start, stop), shape)
                assert torch.equal(part, whole[start:stop]), (chunk, start)
        for position in [0, 1, 15, 31, 32, 255, 256, 257, 511, 512, 513, 640, length - 1]:
            decode = ops.paged_attention(qkv[position : position + 1], cache, part_of(batch, position, position + 1), shape)
            assert torch.equal(decode[0], whole[position]), position


def test_the_order_of_blocks_and_the_other_sequences_change_no_bit():
    shape = AttentionShape(9, 3, 64, 0.125)
    generator = torch.Generator().manual_seed(5)
    lens = [3, 40, 700, 129, 16, 1, 260]
    batch = make_batch([(length - 1, 1) for length in lens], 16, 200, generator)
    cache = make_cache(200, shape, 16, torch.float16, generator)
    qkv = torch.randn(len(lens), shape.qkv_size, generator=generator)
    together = TWO_THREADS.paged_attention(qkv, cache, batch, shape)
    order = torch.randperm(200, generator=generator)
    shuffled = make_cache(200, shape, 16, torch.float16, generator)
    shuffled[order] = cache
    for s, length in enumerate(lens):
        count = -(-length // 16)
        table = order[batch.block_tables[s, :count].long()].to(torch.int32).unsqueeze(0)
        alone = Batch(1, 1, 1, length, *[torch.zeros(1, dtype=torch.int32)] * 2, torch.tensor([0]), torch.tensor([0, 1], dtype=torch.int32),
                      torch.tensor([length], dtype=torch.int32), table, torch.tensor([0], dtype=torch.int32))  # fmt: skip
        assert torch.equal(TWO_THREADS.paged_attention(qkv[s : s + 1], shuffled, alone, shape)[0], together[s])


def test_a_very_long_context_split_over_threads_matches_the_reference_and_one_thread():
    shape = AttentionShape(4, 1, 64, 0.125)
    length = 9000  # more segments than one wave holds
    qkv, cache, batch = one_sequence(length, shape, 16, torch.float16)
    last = part_of(batch, length - 1, length)
    expected = REFERENCE.paged_attention(qkv[-1:], cache, last, shape)
    split = TWO_THREADS.paged_attention(qkv[-1:], cache, last, shape)
    torch.testing.assert_close(split, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(split, ONE_THREAD.paged_attention(qkv[-1:], cache, last, shape))


def test_working_memory_does_not_grow_with_the_context():
    shape = AttentionShape(6, 2, 64, 0.125)
    ops = cpu_ops(2)
    for length in (40, 20000):
        qkv, cache, batch = one_sequence(length, shape, 16, torch.float16)
        for start in (length - 1, length - 33):
            ops.paged_attention(qkv[start:].contiguous(), cache, part_of(batch, start, length), shape)
        held = ops.pool.scratch_bytes() + sum(t.numel() * 4 for t in ops._partials.values())
        assert held < 2**20  # in float32, 20,000 keys and values of one head alone are ten times that


@pytest.mark.parametrize("head_size", [20, 64, 128])
def test_an_int8_row_is_the_codes_of_its_rotation_and_their_scale(head_size):
    shape = AttentionShape(2, 1, head_size, 1.0)
    generator = torch.Generator().manual_seed(head_size)
    batch = make_batch([(0, 40)], 16, 4, generator)
    cache = make_cache(4, shape, 16, torch.int8, generator)
    qkv = torch.randn(40, shape.qkv_size, generator=generator) * torch.logspace(-6, 6, 40).unsqueeze(1)
    qkv[3] = 0.0
    TWO_THREADS.rotary_and_write_kv(qkv, cache, make_cos_sin(64, head_size), batch, shape)
    slots = batch.slot_mapping
    rows = cache[slots // 16, :, 0, slots % 16]  # [40, 2, row]
    expected = rotate_rows(qkv.view(40, 4, head_size)[:, 2:])
    largest = expected.abs().amax(-1, keepdim=True)
    assert ((rotate_rows(decode_rows(rows, head_size)) - expected).abs() <= largest * (0.5001 / 127)).all()
    assert int(rows[..., :head_size].abs().max()) == 127


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_still_shows_in_an_int8_row(bad):
    shape = AttentionShape(1, 1, 64, 1.0)
    generator = torch.Generator().manual_seed(0)
    batch = make_batch([(0, 2)], 16, 4, generator)
    cache = make_cache(4, shape, 16, torch.int8, generator)
    qkv = torch.randn(2, shape.qkv_size, generator=generator)
    qkv[0, 150] = bad  # in the first token's value
    TWO_THREADS.rotary_and_write_kv(qkv, cache, make_cos_sin(4, 64), batch, shape)
    assert not TWO_THREADS.paged_attention(qkv, cache, batch, shape).isfinite().any()


def test_a_step_without_tokens_is_nothing():
    shape = AttentionShape(4, 2, 64, 0.125)
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(4, shape, 16, torch.float32, generator)
    before = cache.clone()
    empty = torch.zeros(0, dtype=torch.int32)
    batch = Batch(0, 0, 0, 0, empty, empty, empty.long(), torch.zeros(1, dtype=torch.int32), empty, empty.view(0, 1), empty)
    qkv = torch.empty(0, shape.qkv_size)
    TWO_THREADS.rotary_and_write_kv(qkv, cache, make_cos_sin(8, 64), batch, shape)
    assert TWO_THREADS.paged_attention(qkv, cache, batch, shape).shape == (0, 256)
    assert torch.equal(cache, before)


def test_blocks_are_copied_and_nothing_else_changes():
    shape = AttentionShape(4, 2, 64, 0.125)
    cache = make_cache(10, shape, 16, torch.float16, torch.Generator().manual_seed(0))
    expected = cache.clone()
    pairs = torch.tensor([[1, 7], [3, 2]])
    REFERENCE.copy_blocks(expected, expected, pairs)
    TWO_THREADS.copy_blocks(cache, cache, pairs)
    assert torch.equal(cache, expected)


def test_a_cache_of_another_type_or_form_is_refused():
    shape = AttentionShape(4, 2, 64, 0.125)
    generator = torch.Generator().manual_seed(0)
    batch = make_batch([(0, 2)], 16, 4, generator)
    qkv = torch.randn(2, shape.qkv_size)
    with pytest.raises(ValueError, match="float8"):
        TWO_THREADS.paged_attention(qkv, torch.zeros(4, 2, 2, 16, 64).to(torch.float8_e4m3fn), batch, shape)
    with pytest.raises(ValueError, match="does not fit"):
        TWO_THREADS.paged_attention(qkv, torch.zeros(4, 2, 1, 16, 64), batch, shape)
    with pytest.raises(ValueError, match="does not fit"):
        TWO_THREADS.paged_attention(qkv, torch.zeros(4, 2, 2, 64, 16).transpose(3, 4), batch, shape)

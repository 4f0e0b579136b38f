"""Decodes through recorded graphs of a ladder of sizes: without a GPU, what is recorded runs eagerly, on the same padded batches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_cases import DEVICE, OUTSIDE, make_contexts, noise, place

from kernels.batch import AttentionShape, Batch
from kernels.sampling import NUM_WORDS, Draws
from kernels.triton import TritonOps, attention
from kernels.triton.graphs import DecodeGraphs, ladder, repeat_eagerly
from kernels.weights import DenseWeight

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)
VOCABULARY, MOST, BLOCK_SIZE, NUM_SLOTS = 20, 6, 8, 9
BUFFERS = ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "logits_indices")


class OneLayer:
    """Attention between an embedding and an output layer, written as a model's forward is."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ops = TritonOps(DEVICE, torch.float32)
        self.table = self.ops.pack_linear(DenseWeight(torch.randn(VOCABULARY, 32, generator=generator)), None)
        self.qkv = self.ops.pack_linear(DenseWeight(torch.randn(SHAPE.qkv_size, 32, generator=generator)), None)
        self.output = self.ops.pack_linear(DenseWeight(torch.randn(VOCABULARY, SHAPE.q_size, generator=generator)), None)
        self.cos_sin = noise(generator, 256, SHAPE.head_size)
        self.cache = torch.empty(0)

    def forward(self, batch: Batch) -> torch.Tensor:
        qkv = self.ops.linear(self.ops.embedding(batch.token_ids, self.table), self.qkv)
        self.ops.rotary_and_write_kv(qkv, self.cache, self.cos_sin, batch, SHAPE)
        attended = self.ops.paged_attention(qkv, self.cache, batch, SHAPE)
        return self.ops.linear(self.ops.gather_rows(attended, batch.logits_indices), self.output)


def in_buffers(capacity: Batch, batch: Batch) -> Batch:
    """The batch, its tensors copied to the front of the buffers; what lies behind them is as it was."""
    views = {}
    for name in (*BUFFERS, "block_tables"):
        source = getattr(batch, name)
        view = getattr(capacity, name)[: source.shape[0]]
        view[tuple(slice(size) for size in source.shape)] = source
        views[name] = view
    capacity.draws.counts.copy_(torch.tensor([batch.num_seqs, len(batch.logits_indices), 0]))
    return replace(batch, draws=capacity.draws, **views)


def new_capacity(max_blocks: int, stale_slot: int) -> Batch:
    """Buffers full of what an earlier, larger step may have left: slots that now belong to others, blocks that are gone."""
    ints = {name: torch.full((MOST + 1,), 3, dtype=torch.int32, device=DEVICE) for name in BUFFERS}
    ints["slot_mapping"] = torch.full((MOST + 1,), stale_slot, dtype=torch.int64, device=DEVICE)
    tables = torch.full((MOST, max_blocks), OUTSIDE, dtype=torch.int32, device=DEVICE)
    draws = Draws(
        counts=torch.zeros(3, dtype=torch.int32, device=DEVICE),
        settings=torch.zeros((MOST, NUM_WORDS), dtype=torch.int64, device=DEVICE),
        slots=torch.zeros(MOST, dtype=torch.int32, device=DEVICE),
        token_ids=torch.full((MOST,), 99, dtype=torch.int64, device=DEVICE),
        last_token_ids=torch.full((NUM_SLOTS,), 99, dtype=torch.int32, device=DEVICE),
    )
    return Batch(
        num_tokens=MOST, num_seqs=MOST, max_query_len=MOST, max_seq_len=max_blocks * BLOCK_SIZE, block_tables=tables, draws=draws, **ints
    )  # fmt: skip


@settings(max_examples=5)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=MOST), st.integers(0, 1000))
def test_padded_rows_change_neither_a_logit_nor_the_cache(seq_lens, seed):
    generator = torch.Generator().manual_seed(seed)
    model = OneLayer()
    decodes, model.cache = place(generator, make_contexts(generator, SHAPE, seq_lens, torch.float32), [1] * len(seq_lens), BLOCK_SIZE)
    decodes = replace(decodes, token_ids=torch.randint(0, VOCABULARY, (len(seq_lens),), generator=generator).to(DEVICE, torch.int32))
    wanted = decodes.logits_indices[: max(1, len(seq_lens) - 1)]  # a chunk of one token, whose logits nobody wants, may be among them
    before = model.cache.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SPLIT", 64)
        expected = model.forward(replace(decodes, logits_indices=wanted))
        expected_cache, model.cache = model.cache, before
        capacity = new_capacity(decodes.block_tables.shape[1] + 20, stale_slot=int(decodes.slot_mapping[0]))
        graphs = DecodeGraphs(model.forward, capacity, repeat_eagerly)
        actual = graphs(in_buffers(capacity, replace(decodes, logits_indices=wanted)))
    # Dense products round differently for another number of rows; numbers of somebody else's would be off by far more.
    torch.testing.assert_close(actual[: len(wanted)], expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.cache, expected_cache, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_each_size_is_recorded_once_largest_first_and_replayed_for_what_fits_it():
    recorded, replayed = [], []

    def record(body):
        size = body.args[0].num_seqs
        recorded.append(size)

        def replay():
            replayed.append(size)
            return torch.zeros(size, VOCABULARY)

        return replay

    eager = []

    def forward(batch):
        eager.append(batch.num_seqs)
        return torch.zeros(len(batch.logits_indices), VOCABULARY)

    capacity = new_capacity(4, stale_slot=0)
    graphs = DecodeGraphs(forward, capacity, record)
    assert recorded == []
    graphs.prepare()
    assert recorded == [6, 4, 2, 1]
    for num_seqs in (1, 2, 3, 4, 5, 6):
        decodes = replace(
            capacity, num_tokens=num_seqs, num_seqs=num_seqs, max_query_len=1, logits_indices=capacity.logits_indices[:num_seqs]
        )
        assert graphs(decodes).shape == (num_seqs, VOCABULARY)
    assert replayed == [1, 2, 4, 4, 6, 6]
    assert len(recorded) == 4
    assert eager == []
    graphs(replace(decodes, num_tokens=8, max_query_len=3))
    assert eager == [6]


def test_the_ladder_ends_with_the_most_sequences_of_a_step():
    assert ladder(1) == [1]
    assert ladder(20) == [1, 2, 4, 8, 16, 20]
    sizes = ladder(256)
    assert sizes[-1] == 256
    assert len(sizes) < 20
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(sizes))


@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_how_many_programs_share_the_splits_of_a_context_changes_no_bits(programs, monkeypatch):
    monkeypatch.setattr(attention, "SPLIT", 64)
    generator = torch.Generator().manual_seed(2)
    batch, cache = place(generator, make_contexts(generator, SHAPE, [300, 5, 129], torch.float16), [1] * 3, 16)
    qkv = noise(generator, 3, SHAPE.qkv_size, dtype=torch.float16)
    ops = TritonOps(DEVICE, torch.float16)
    expected = ops.paged_attention(qkv, cache, batch, SHAPE)
    monkeypatch.setattr(attention, "DECODE_PROGRAMS", programs)
    assert torch.equal(ops.paged_attention(qkv, cache, batch, SHAPE), expected)

"""A recorded plan gives the bits that the operations give one by one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from cpu_cases import CPU, cpu_ops, make_batch, make_cos_sin, random_quantized

from kernels.batch import AttentionShape, Batch
from kernels.cpu.plan import Buffer, lay_out
from kernels.weights import DenseWeight

SHAPE = AttentionShape(6, 2, 32, 0.17)
HIDDEN, INTERMEDIATE, VOCABULARY, BLOCK_SIZE, NUM_BLOCKS = 192, 320, 101, 16, 120
MAX_TOKENS, MAX_SEQS, MAX_BLOCKS = 96, 8, 40


class SmallModel:
    """Three layers of the usual decoder, in the calls that engine/models makes."""

    def __init__(self, ops, quantized: bool, generator: torch.Generator) -> None:
        def linear(out_features, in_features, bits=4):
            if quantized:
                weight = random_quantized(out_features, in_features, generator, bits, signed=bits == 8)
            else:
                weight = DenseWeight(torch.randn(out_features, in_features, generator=generator) * 0.05)
            return ops.pack_linear(weight, None)

        self.layers = [
            (
                torch.rand(2, HIDDEN, generator=generator) + 0.5,
                linear(SHAPE.qkv_size, HIDDEN),
                linear(HIDDEN, SHAPE.q_size),
                linear(2 * INTERMEDIATE, HIDDEN),
                linear(HIDDEN, INTERMEDIATE, bits=6),
            )
            for _ in range(3)
        ]
        self.table = linear(VOCABULARY, HIDDEN, bits=8)
        self.norm = torch.rand(HIDDEN, generator=generator)
        self.cos_sin = make_cos_sin(1024, SHAPE.head_size)
        self.kv = torch.zeros(3, NUM_BLOCKS, 2, SHAPE.num_kv_heads, BLOCK_SIZE, SHAPE.head_size, dtype=torch.float16)

    def forward(self, ops, batch: Batch):
        hidden = ops.embedding(batch.token_ids, self.table)
        residual = None
        for index, (norms, qkv_weight, o_weight, gate_up_weight, down_weight) in enumerate(self.layers):
            if residual is None:
                residual, x = hidden, ops.rms_norm(hidden, norms[0], 1e-5)
            else:
                x, residual = ops.add_rms_norm(hidden, residual, norms[0], 1e-5)
            qkv = ops.linear(x, qkv_weight)
            ops.rotary_and_write_kv(qkv, self.kv[index], self.cos_sin, batch, SHAPE)
            x = ops.linear(ops.paged_attention(qkv, self.kv[index], batch, SHAPE), o_weight)
            x, residual = ops.add_rms_norm(x, residual, norms[1], 1e-5)
            hidden = ops.linear(ops.silu_and_mul(ops.linear(x, gate_up_weight)), down_weight)
        x, _ = ops.add_rms_norm(hidden, residual, self.norm, 1e-5)
        return ops.linear(ops.gather_rows(x, batch.logits_indices), self.table)


@dataclass
class Buffers:
    """The full-size buffers of a runner, and batches that are their prefixes."""

    batch: Batch

    @classmethod
    def create(cls) -> Buffers:
        def ints(*size, dtype=torch.int32):
            return torch.zeros(size, dtype=dtype)

        return cls(Batch(MAX_TOKENS, MAX_SEQS, MAX_TOKENS, 640, ints(MAX_TOKENS), ints(MAX_TOKENS), ints(MAX_TOKENS, dtype=torch.int64),
                         ints(MAX_SEQS + 1), ints(MAX_SEQS), ints(MAX_SEQS, MAX_BLOCKS), ints(MAX_SEQS)))  # fmt: skip

    def hold(self, batch: Batch) -> Batch:
        views = {}
        for name in ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "logits_indices"):
            value = getattr(batch, name)
            views[name] = getattr(self.batch, name)[: value.shape[0]]
            views[name].copy_(value)
        self.batch.block_tables.fill_(2**30)
        views["block_tables"] = self.batch.block_tables[: batch.num_seqs]
        columns = min(batch.block_tables.shape[1], MAX_BLOCKS)
        views["block_tables"][:, :columns] = batch.block_tables[:, :columns]
        return Batch(batch.num_tokens, batch.num_seqs, batch.max_query_len, batch.max_seq_len, **views)


STEPS = [
    [(0, 40), (0, 7)],
    [(40, 1), (7, 1)],
    [(600, 1)],
    [(3, 1), (10, 30), (0, 1), (100, 60)],
    [(i * 3, 1) for i in range(8)],
    [(0, 96)],
    [(5, 1)],
]


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_plan_gives_the_bits_of_its_operations_one_by_one(quantized, num_threads):
    ops = cpu_ops(num_threads)
    generator = torch.Generator().manual_seed(1)
    model = SmallModel(ops, quantized, generator)
    buffers = Buffers.create()
    plan = ops.capture(model.forward, buffers.batch, MAX_SEQS)
    noise = torch.randn(model.kv.shape, generator=generator).half()
    for seqs in STEPS:
        batch = buffers.hold(make_batch(seqs, BLOCK_SIZE, NUM_BLOCKS, generator))
        model.kv.copy_(noise)
        expected = model.forward(ops, batch)
        expected_kv = model.kv.clone()
        model.kv.copy_(noise)
        actual = plan(batch)
        assert actual.shape == (len(seqs), VOCABULARY)
        assert torch.equal(actual, expected)
        assert torch.equal(model.kv, expected_kv)
        assert actual.abs().max() > 0.01


def test_a_sequence_has_the_same_logits_alone_and_in_any_batch():
    ops = cpu_ops(2)
    generator = torch.Generator().manual_seed(2)
    model = SmallModel(ops, True, generator)
    buffers = Buffers.create()
    plan = ops.capture(model.forward, buffers.batch, MAX_SEQS)
    model.kv.copy_(torch.randn(model.kv.shape, generator=generator))
    batch = make_batch([(30, 1), (3, 20), (200, 1), (77, 40)], BLOCK_SIZE, NUM_BLOCKS, generator)
    together = plan(buffers.hold(batch)).clone()
    starts, lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for s in range(4):
        tokens = slice(starts[s], starts[s + 1])
        count = starts[s + 1] - starts[s]
        alone = Batch(count, 1, count, lens[s], batch.token_ids[tokens], batch.positions[tokens], batch.slot_mapping[tokens],
                      torch.tensor([0, count], dtype=torch.int32), batch.seq_lens[s : s + 1], batch.block_tables[s : s + 1],
                      torch.tensor([count - 1], dtype=torch.int32))  # fmt: skip
        assert torch.equal(plan(buffers.hold(alone))[0], together[s])


def test_a_plans_memory_is_far_below_the_sum_of_its_results():
    ops = cpu_ops(1)
    model = SmallModel(ops, True, torch.Generator().manual_seed(0))
    plan = ops.capture(model.forward, Buffers.create().batch, MAX_SEQS)
    widest = MAX_TOKENS * 4 * (2 * INTERMEDIATE + 3 * HIDDEN + SHAPE.qkv_size)
    assert plan.num_bytes < 2 * widest


def test_buffers_that_are_alive_together_never_overlap():
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        buffers = []
        for _ in range(40):
            start, length, size = (int(torch.randint(1, high, (1,), generator=generator)) for high in (50, 20, 5000))
            buffers.append(Buffer(size, start, start + length))
        end = lay_out(buffers)
        for one in buffers:
            assert 0 <= one.offset <= one.offset + one.num_bytes <= end
            assert one.offset % 64 == 0
            for other in buffers:
                if one is not other and one.first_use <= other.last_use and other.first_use <= one.last_use:
                    assert one.offset + one.num_bytes <= other.offset or other.offset + other.num_bytes <= one.offset


def test_a_step_larger_than_the_plan_is_refused():
    ops = cpu_ops(1)
    generator = torch.Generator().manual_seed(0)
    model = SmallModel(ops, True, generator)
    plan = ops.capture(model.forward, Buffers.create().batch, MAX_SEQS)
    with pytest.raises(ValueError, match="made for 96 tokens and 8 logits"):
        plan(make_batch([(0, 97)], BLOCK_SIZE, NUM_BLOCKS, generator))
    with pytest.raises(ValueError, match="made for 96 tokens and 8 logits"):
        plan(make_batch([(0, 1)] * 9, BLOCK_SIZE, NUM_BLOCKS, generator))


def test_a_forward_that_does_more_than_call_operations_is_refused():
    ops = cpu_ops(1)
    model = SmallModel(ops, False, torch.Generator().manual_seed(0))
    capacity = Buffers.create().batch
    with pytest.raises(ValueError, match="results of operations"):
        ops.capture(lambda ops, batch: ops.linear(torch.randn(2, HIDDEN), model.table), capacity, 1)
    with pytest.raises(ValueError, match="no other index tensors"):
        ops.capture(lambda ops, batch: ops.embedding(batch.token_ids[:3], model.table), capacity, 1)
    with pytest.raises(ValueError, match="result of an operation"):
        ops.capture(lambda ops, batch: torch.zeros(1, device=CPU), capacity, 1)

"""Random batches, caches and weights for the tests of the CPU kernels."""

from __future__ import annotations

import torch

from kernels.batch import AttentionShape, Batch
from kernels.cpu import load_cpu_ops
from kernels.cpu.ops import CpuOps
from kernels.kv_cache import encode_rows
from kernels.reference import ReferenceOps
from kernels.weights import QuantizedWeight

CPU = torch.device("cpu")
REFERENCE = ReferenceOps(CPU, torch.float32)


def cpu_ops(num_threads: int | None = 2) -> CpuOps:
    ops = load_cpu_ops(CPU, torch.float32, num_threads)
    assert isinstance(ops, CpuOps), "the CPU kernels did not build"
    return ops


def make_batch(seqs: list[tuple[int, int]], block_size: int, num_blocks: int, generator: torch.Generator, spare_columns: int = 3) -> Batch:
    """A batch of sequences (context before this step, tokens in this step), with blocks in random order.

    The block tables' padding is far outside the pool: reading through it would crash.
    """
    lens = [context + query for context, query in seqs]
    columns = max(-(-length // block_size) for length in lens) + spare_columns
    tables = torch.full((len(seqs), columns), 2**30, dtype=torch.int32)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    positions, slots, starts = [], [], [0]
    for s, (context, query) in enumerate(seqs):
        count = -(-lens[s] // block_size)
        blocks = [free.pop() for _ in range(count)]
        tables[s, :count] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(context, context + query):
            positions.append(position)
            slots.append(blocks[position // block_size] * block_size + position % block_size)
        starts.append(starts[-1] + query)
    return Batch(
        num_tokens=starts[-1],
        num_seqs=len(seqs),
        max_query_len=max(query for _, query in seqs),
        max_seq_len=max(lens),
        token_ids=torch.randint(0, 50, (starts[-1],), dtype=torch.int32, generator=generator),
        positions=torch.tensor(positions, dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_tables=tables,
        logits_indices=torch.tensor([start - 1 for start in starts[1:]], dtype=torch.int32),
    )


def make_cache(num_blocks: int, shape: AttentionShape, block_size: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A cache whose block stride is larger than a block, filled with noise."""
    noise = torch.randn(num_blocks, 2, shape.num_kv_heads, block_size, shape.head_size, generator=generator)
    rows = encode_rows(noise, dtype).flatten(1)
    pool = torch.cat((rows, torch.zeros(num_blocks, 24, dtype=dtype)), dim=1)
    return pool[:, : rows.shape[1]].view(num_blocks, 2, shape.num_kv_heads, block_size, -1)


def make_cos_sin(max_positions: int, rotary_dim: int) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    angles = torch.arange(max_positions).float().unsqueeze(1) * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def random_quantized(
    out_features: int,
    in_features: int,
    generator: torch.Generator,
    bits: int = 4,
    signed: bool = False,
    group_size: int = 32,
    with_mins: bool = True,
    half_scales: bool = True,
) -> QuantizedWeight:
    low = -(1 << (bits - 1)) if signed else 0
    codes = torch.randint(low, low + (1 << bits), (out_features, in_features), generator=generator)
    groups = in_features // group_size
    scales = (torch.rand(out_features, groups, generator=generator) + 0.1) * 0.02
    mins = torch.randn(out_features, groups, generator=generator) * 0.1 if with_mins else None
    if half_scales:
        scales, mins = scales.half().float(), None if mins is None else mins.half().float()
    return QuantizedWeight(codes.to(torch.int8 if signed or bits < 8 else torch.uint8), scales, mins, group_size, bits, signed)

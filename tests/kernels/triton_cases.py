"""Batches over a paged cache for the tests of the Triton kernels, on the CPU through Triton's interpreter, or on a GPU if told so."""

from __future__ import annotations

import torch
import triton

from kernels.batch import AttentionShape, Batch
from kernels.kv_cache import encode_rows
from kernels.reference import ReferenceOps
from kernels.triton import TritonOps

INTERPRETED = triton.knobs.runtime.interpret
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# The interpreter multiplies bfloat16 as if it were integers.
PRODUCT_DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
OUTSIDE = 2**31 - 1  # a block number that nobody may follow


def both_ops(dtype: torch.dtype) -> tuple[TritonOps, ReferenceOps]:
    return TritonOps(DEVICE, dtype), ReferenceOps(DEVICE, dtype)


def noise(generator: torch.Generator, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=generator).to(DEVICE, dtype)


def make_contexts(generator: torch.Generator, shape: AttentionShape, seq_lens: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Keys and values of each sequence as rows of a cache: [2, K, seq_len, row]."""
    return [encode_rows(noise(generator, 2, shape.num_kv_heads, seq_len, shape.head_size), dtype) for seq_len in seq_lens]


def place(generator: torch.Generator, contexts: list[torch.Tensor], query_lens: list[int], block_size: int) -> tuple[Batch, torch.Tensor]:
    """A batch whose sequences have these contexts, and the cache that holds them in blocks of random order.

    The cache is NaN where no token is, its block stride is larger than a block, and the block tables are padded with OUTSIDE: what reads
    too far does not go unseen.
    """
    seq_lens = [context.shape[2] for context in contexts]
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(counts) + 2
    _, num_kv_heads, _, row = contexts[0].shape
    size = 2 * num_kv_heads * block_size * row
    pool = torch.empty((num_blocks, size + 16), dtype=contexts[0].dtype, device=DEVICE)
    pool.view(torch.uint8).fill_(0xFF)  # NaN in any type of floats, and in the scales of int8
    cache = pool[:, :size].view(num_blocks, 2, num_kv_heads, block_size, row)
    tables = torch.full((len(contexts), max(counts) + 2), OUTSIDE, dtype=torch.int32)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    positions, slots, starts = [], [], [0]
    for s, (context, query_len) in enumerate(zip(contexts, query_lens, strict=True)):
        blocks = [free.pop() for _ in range(counts[s])]
        tables[s, : counts[s]] = torch.tensor(blocks)
        for i, block in enumerate(blocks):
            part = context[:, :, i * block_size : (i + 1) * block_size]
            cache[block, :, :, : part.shape[2]] = part
        own = range(seq_lens[s] - query_len, seq_lens[s])
        positions += own
        slots += [blocks[p // block_size] * block_size + p % block_size for p in own]
        starts.append(starts[-1] + query_len)
    batch = Batch(
        num_tokens=starts[-1],
        num_seqs=len(contexts),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        token_ids=torch.zeros(starts[-1], dtype=torch.int32, device=DEVICE),
        positions=torch.tensor(positions, dtype=torch.int32, device=DEVICE),
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        query_start_loc=torch.tensor(starts, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
        block_tables=tables.to(DEVICE),
        logits_indices=torch.tensor([start - 1 for start in starts[1:]], dtype=torch.int32, device=DEVICE),
    )
    return batch, cache


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, steps: int = 1) -> None:
    """Equal up to the rounding of `dtype`, so many times."""
    tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype] * steps
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

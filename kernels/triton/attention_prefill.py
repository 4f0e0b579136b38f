"""Attention of sequences that have several queries in the step: prompts, and chunks of prompts behind a cached prefix."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.attention_tile import attend, first_visible_key, normalize


@triton.jit(do_not_specialize=["num_seqs"])
def attention_prefill_kernel(
    out_ptr,  # [T, H * D]
    qkv_ptr,  # [T, at least H * D]
    kv_cache_ptr,  # [num_blocks, 2, K, BLOCK_SIZE, ROW]
    block_tables_ptr,  # [S, max_blocks] int32
    query_start_loc_ptr,  # [S + 1] int32
    seq_lens_ptr,  # [S] int32
    qkv_stride,
    out_stride,
    table_stride,
    block_stride,
    scale_log2,
    num_seqs,
    GROUP: tl.constexpr,  # H // K
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,  # ROWS // GROUP: tokens of one program
    ROW: tl.constexpr,  # elements of a row of the cache
):
    """One program per tile of QUERIES tokens and kv head: grid (T // QUERIES + S, K).

    The rows of a tile are its tokens times the query heads of the kv head, so each key read serves them all (FlashAttention-2: Dao,
    2023). The host knows T and S but not the sequences' lengths: sequence s owns the tiles from start[s] // QUERIES + s on, which
    are at least as many as it needs, and a program finds its sequence by bisection. Sequences with one query are left to the decode
    kernel.
    """
    # The last tiles of a prompt see the most keys: they start first, so that no long program is left alone at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = find_sequence(query_start_loc_ptr, tile, num_seqs, QUERIES)
    seq_start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - seq_start
    first_query = (tile - seq_start // QUERIES - seq) * QUERIES
    if query_len <= 1 or first_query >= query_len:
        return

    rows = tl.arange(0, ROWS)
    offsets, real = query_offsets(rows, seq_start, first_query, query_len, qkv_stride, kv_head, GROUP, D, QUERIES)
    dims = tl.arange(0, D_PAD)
    q = tl.load(qkv_ptr + offsets[:, None] + dims[None, :], mask=real[:, None] & (dims < D)[None, :], other=0.0)

    computed = tl.load(seq_lens_ptr + seq) - query_len  # tokens before this chunk
    positions = computed + first_query + rows // GROUP
    first_key = first_visible_key(computed + first_query, WINDOW)
    last_key = computed + tl.minimum(first_query + QUERIES, query_len) - 1
    _top, total, acc = attend(
        q, positions, kv_cache_ptr + kv_head * BLOCK_SIZE * ROW, block_stride, block_tables_ptr + seq.to(tl.int64) * table_stride,
        first_key, last_key, scale_log2, K, D, D_PAD, ROW, BLOCK_SIZE, SPLIT, TILE, WINDOW, Q_IN_REGISTERS=False,
    )  # fmt: skip

    # Reading the start again hides from the compiler that the rows are the same, lest it keep their addresses in registers until here.
    rows += tl.load(query_start_loc_ptr + seq, volatile=True) - seq_start
    offsets, real = query_offsets(rows, seq_start, first_query, query_len, out_stride, kv_head, GROUP, D, QUERIES)
    out = normalize(total, acc, ROW != D).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets[:, None] + dims[None, :], out, mask=real[:, None] & (dims < D)[None, :])


@triton.jit
def query_offsets(rows, seq_start, first_query, query_len, stride, kv_head, GROUP: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr):
    """Where the heads of a tile's rows begin, in a tensor of `stride` elements per token, and which of the rows there are."""
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    return (seq_start + queries).to(tl.int64) * stride + heads * D, (rows < QUERIES * GROUP) & (queries < query_len)


@triton.jit
def find_sequence(query_start_loc_ptr, tile, num_seqs, QUERIES: tl.constexpr):
    """The last sequence s with start[s] // QUERIES + s <= tile."""
    low = tile * 0
    high = low + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc_ptr + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low

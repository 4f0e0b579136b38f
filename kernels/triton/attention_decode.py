"""Attention of sequences that have one query in the step, over their whole context."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.attention_tile import attend_split, first_visible_key, normalize


@triton.jit(do_not_specialize=["first_seq", "num_splits"])
def attention_decode_kernel(
    out_ptr,  # [T, H * D]
    partial_acc_ptr,  # [num_seqs of this launch, H, num_splits, D] float32
    partial_stats_ptr,  # [num_seqs of this launch, H, num_splits, 2] float32: top and total
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
    first_seq,
    num_splits,
    GROUP: tl.constexpr,  # H // K
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,  # at least GROUP, and at least the 16 of a tensor core's tile
    PARTIAL: tl.constexpr,
    ROW: tl.constexpr,  # elements of a row of the cache
):
    """Sequences, kv heads and splits are computed side by side (flash-decoding: Dao et al., 2023): grid (num_seqs of this launch, K, P).

    A program takes every P-th split, so the bound on contexts that a CUDA graph is recorded with, and most contexts are far from, makes no
    crowd of programs without work. Each split is computed by itself: P changes no bits.

    All query heads of a kv head are rows of one tile, so its keys and values are read once. Sequences with more queries, or none, are
    left to the prefill kernel. PARTIAL: the splits' sums are stored for `attention_merge_kernel`; else one split holds every context
    of the batch, and its result is final, with the bits that a merge of one split would give.
    """
    seq = first_seq + tl.program_id(0)
    kv_head = tl.program_id(1)
    token = tl.load(query_start_loc_ptr + seq)
    if tl.load(query_start_loc_ptr + seq + 1) - token != 1:
        return
    position = tl.load(seq_lens_ptr + seq) - 1
    first_key = first_visible_key(position, WINDOW)
    first_split = first_key // SPLIT

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, D_PAD)
    heads = kv_head * GROUP + rows
    stored = (rows < GROUP)[:, None] & (dims < D)[None, :]
    q = tl.load(qkv_ptr + token.to(tl.int64) * qkv_stride + heads[:, None] * D + dims[None, :], mask=stored, other=0.0)
    positions = tl.zeros([ROWS], tl.int32) + position
    keys_ptr = kv_cache_ptr + kv_head * BLOCK_SIZE * ROW
    table_ptr = block_tables_ptr + seq.to(tl.int64) * table_stride
    for split in tl.range(first_split + tl.program_id(2), tl.maximum(position, 0) // SPLIT + 1, tl.num_programs(2)):
        top, total, acc = attend_split(
            q, positions, keys_ptr, block_stride, table_ptr, split, first_key, position, scale_log2,
            K, D, D_PAD, ROW, BLOCK_SIZE, SPLIT, TILE, WINDOW, Q_IN_REGISTERS=True,
        )  # fmt: skip
        if PARTIAL:
            # Reading the length again hides from the compiler that the rows are the same, lest it keep places in registers meanwhile.
            own = rows + tl.load(seq_lens_ptr + seq, volatile=True) - 1 - position
            place = (tl.program_id(0) * (K * GROUP) + kv_head * GROUP + own).to(tl.int64) * num_splits + split - first_split
            tl.store(partial_stats_ptr + place * 2, top, mask=own < GROUP)
            tl.store(partial_stats_ptr + place * 2 + 1, total, mask=own < GROUP)
            tl.store(partial_acc_ptr + place[:, None] * D + dims[None, :], acc, mask=(own < GROUP)[:, None] & (dims < D)[None, :])
        else:
            out = normalize(total, acc, ROW != D).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + token.to(tl.int64) * out_stride + heads[:, None] * D + dims[None, :], out, mask=stored)

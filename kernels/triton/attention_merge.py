"""The second half of split decode attention: the splits of each sequence are brought together."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.attention_tile import first_visible_key, merge, normalize


@triton.jit(do_not_specialize=["first_seq", "num_splits"])
def attention_merge_kernel(
    out_ptr,  # [T, H * D]
    partial_acc_ptr,  # [num_seqs of this launch, H, num_splits, D] float32
    partial_stats_ptr,  # [num_seqs of this launch, H, num_splits, 2] float32: top and total
    query_start_loc_ptr,  # [S + 1] int32
    seq_lens_ptr,  # [S] int32
    out_stride,
    first_seq,
    num_splits,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,  # at least GROUP
    ROW: tl.constexpr,
):
    """One program per sequence and kv head, first split to last: grid (num_seqs of this launch, K). Other sequences than
    those of `attention_decode_kernel` are not touched.
    """
    seq = first_seq + tl.program_id(0)
    kv_head = tl.program_id(1)
    token = tl.load(query_start_loc_ptr + seq)
    if tl.load(query_start_loc_ptr + seq + 1) - token != 1:
        return
    position = tl.load(seq_lens_ptr + seq) - 1
    used_splits = position // SPLIT - first_visible_key(position, WINDOW) // SPLIT + 1

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, D_PAD)
    heads = kv_head * GROUP + rows
    stored = (rows < GROUP)[:, None] & (dims < D)[None, :]
    place = (tl.program_id(0) * (K * GROUP) + heads).to(tl.int64) * num_splits
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D_PAD], tl.float32)
    for split in tl.range(0, used_splits):
        split_top = tl.load(partial_stats_ptr + (place + split) * 2, mask=rows < GROUP, other=0.0)
        split_total = tl.load(partial_stats_ptr + (place + split) * 2 + 1, mask=rows < GROUP, other=0.0)
        split_acc = tl.load(partial_acc_ptr + (place + split)[:, None] * D + dims[None, :], mask=stored, other=0.0)
        top, total, acc = merge(top, total, acc, split_top, split_total, split_acc)
    out = normalize(total, acc, ROW != D).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token.to(tl.int64) * out_stride + heads[:, None] * D + dims[None, :], out, mask=stored)

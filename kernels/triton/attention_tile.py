"""The inner part of attention that the decode and the prefill kernel share, so that both add in one order.

The context of a sequence is cut at fixed positions into splits, and a split into tiles of keys. Within a split the softmax is streamed
tile by tile (Milakov and Gimelshein, 2018; Dao et al., 2022); the splits' results are then merged one after the other, first to last.
Neither the cuts nor the order depend on the batch, on how a prompt was chunked, or on which kernel computes: a row sees the same
sequence of operations whether its splits run one after the other in one program or side by side in several. A tile of which a row sees
no key leaves that row's sums as they are, to the bit.

The row sums of the softmax ride along as one more product (with a matrix of ones): its order of addition is the tensor core's, as that
of the values is, and does not change with the number of warps. Kernels that use this file are compiled with
`enable_fp_fusion=False`, lest the compiler choose differently in each which products to round; where one rounding is wanted, tl.fma
says so.

What is left to the hardware is the product itself. On sm_80 both kernels use the same instruction (mma.sync). On sm_90 prefill uses
wgmma, which needs 64 rows, and decode mma.sync: NVIDIA does not promise that these round alike, so there equal bits between prefill and
decode are likely but not guaranteed; where they must be, prefill is launched with tiles too small for wgmma (`one_instruction`).

A cache of int8 is never widened to what its codes stand for: codes are exact in half precision, the scales of keys multiply the scores, and
those of values the weights. Its rows are rotated (`kernels.kv_cache`): so are the queries that come here, and the results.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Weights times scales of values would have few bits in float16, or none, where values are small.
CODED_VALUES_UNIT = tl.constexpr(64.0)


@triton.jit
def attend(
    q,
    positions,
    keys_ptr,
    block_stride,
    table_ptr,
    first_key,
    last_key,
    scale_log2,
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    ROW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    Q_IN_REGISTERS: tl.constexpr,
):
    """Attention over all keys in [first_key, last_key], split after split: arguments and results as of `attend_split`."""
    rows: tl.constexpr = q.shape[0]
    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, D_PAD], tl.float32)
    for split in tl.range(first_key // SPLIT, last_key // SPLIT + 1):
        split_top, split_total, split_acc = attend_split(
            q, positions, keys_ptr, block_stride, table_ptr, split, first_key, last_key, scale_log2,
            K, D, D_PAD, ROW, BLOCK_SIZE, SPLIT, TILE, WINDOW, Q_IN_REGISTERS,
        )  # fmt: skip
        top, total, acc = merge(top, total, acc, split_top, split_total, split_acc)
    return top, total, acc


@triton.jit
def attend_split(
    q,  # [ROWS, D_PAD]
    positions,  # [ROWS] int32, place of each row's token in the sequence
    keys_ptr,  # the keys of one head in block 0 of the cache
    block_stride,
    table_ptr,  # the sequence's row of the block table
    split,
    first_key,  # the first key that any row sees; those before are not read
    last_key,
    scale_log2,  # the softmax scale times log2(e)
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    ROW: tl.constexpr,  # elements of a row of the cache: D, with int8 and the bytes of a scale
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    Q_IN_REGISTERS: tl.constexpr,  # through the loop; right for few rows, while many leave no room for it
):
    """Attention over the keys of one split: -> (top [ROWS], total [ROWS], acc [ROWS, D_PAD]), all float32.

    `top` is the largest score in units of log2, `total` the sum of 2 ** (score - top), `acc` the values weighted by the same.
    Only block-table entries of keys in [first_key, last_key] are read, and only blocks of these are dereferenced.
    """
    rows: tl.constexpr = q.shape[0]
    precision: tl.constexpr = "ieee" if q.dtype == tl.float32 else "tf32"
    dims = tl.arange(0, D_PAD)
    coded: tl.constexpr = ROW != D
    ones = tl.full([TILE, 16], 1.0, q.dtype)
    top = tl.full([rows], float("-inf"), tl.float32)
    totals = tl.zeros([rows, 16], tl.float32)  # 16 equal columns: the narrowest product there is
    acc = tl.zeros([rows, D_PAD], tl.float32)
    # Tiles start at multiples of TILE, wherever the window starts.
    start = tl.maximum(split * SPLIT, first_key // TILE * TILE)
    stop = tl.minimum(split * SPLIT + SPLIT, last_key + 1)
    for tile in tl.range(start, stop, TILE, disable_licm=not Q_IN_REGISTERS):
        keys = tile + tl.arange(0, TILE)
        if WINDOW > 0:
            # Both bounds in one comparison of unsigned numbers: two, kept over the stages of the pipeline, take too many registers.
            present = (keys - first_key).to(tl.uint32) < (stop - first_key).to(tl.uint32)
        else:
            present = keys < stop
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        offsets = block * block_stride + (keys % BLOCK_SIZE) * ROW
        # Absent values must be 0 and not whatever the cache holds: 0 * NaN would reach the sum.
        loaded = present[:, None] & (dims < D)[None, :]
        pointers = keys_ptr + offsets[:, None] + dims[None, :]
        k = tl.load(pointers, mask=loaded, other=0.0)
        v = tl.load(pointers + K * BLOCK_SIZE * ROW, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(widen(k, q.dtype)), input_precision=precision)
        if coded:
            scale_ptrs = (keys_ptr + offsets + D).to(tl.pointer_type(tl.float32))
            scores *= tl.load(scale_ptrs, mask=present, other=0.0)[None, :]
            v_scales = tl.load(scale_ptrs + K * BLOCK_SIZE * ROW // 4, mask=present, other=0.0) * CODED_VALUES_UNIT
        visible = present[None, :] & (keys[None, :] <= positions[:, None])
        if WINDOW > 0:
            visible &= keys[None, :] > positions[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1) * scale_log2)
        # A row that has seen no key yet: any finite number avoids -inf minus -inf.
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(tl.fma(scores, scale_log2, -finite[:, None]))
        decay = tl.exp2(top - finite)
        scaled = weights * v_scales[None, :] if coded else weights
        acc = tl.dot(scaled.to(q.dtype), widen(v, q.dtype), acc * decay[:, None], input_precision=precision)
        totals = tl.dot(weights.to(q.dtype), ones, totals * decay[:, None], input_precision=precision)
        top = highest
    return top, tl.max(totals, 1), acc


@triton.jit
def widen(values, dtype: tl.constexpr):
    """Keys or values of the cache in the type of the queries."""
    if values.dtype == tl.float8e4nv:
        # Exact either way. From float16, by which 8-bit floats go, sm_90 has only a slow conversion to bfloat16.
        values = values.to(tl.float32)
    return values.to(dtype)


@triton.jit
def merge(top, total, acc, next_top, next_total, next_acc):
    """The result over two sets of keys from those over each: [ROWS], [ROWS] and [ROWS, D_PAD], twice."""
    highest = tl.maximum(top, next_top)
    finite = tl.where(highest == float("-inf"), 0.0, highest)
    decay = tl.exp2(top - finite)
    next_decay = tl.exp2(next_top - finite)
    total = tl.fma(total, decay, next_total * next_decay)
    acc = tl.fma(acc, tl.broadcast_to(decay[:, None], acc.shape), next_acc * next_decay[:, None])
    return highest, total, acc


@triton.jit
def normalize(total, acc, CODED: tl.constexpr):
    """acc / total, one division per row; zeros for a row that saw no key (padding of a captured batch)."""
    if CODED:
        total *= CODED_VALUES_UNIT
    return acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]


@triton.jit
def first_visible_key(position, WINDOW: tl.constexpr):
    """The first key that the query at `position` sees."""
    if WINDOW > 0:
        return tl.maximum(position - (WINDOW - 1), 0)
    return position * 0

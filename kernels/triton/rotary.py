"""Norm and rotary position embedding of queries and keys, and the store of keys and values, in one pass over the fused projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.batch import AttentionShape, QkNorm
from kernels.triton.hadamard import rotation_factor, signs


def rotary_and_write_kv(
    qkv: torch.Tensor,
    kv_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    shape: AttentionShape,
    qk_norm: QkNorm | None = None,
) -> None:
    """qkv [T, (H + 2K) * D] in place, kv_cache [num_blocks, 2, K, block_size, row]; the contract is `Ops.rotary_and_write_kv`.

    Raises ValueError for an int8 cache of heads whose size is no multiple of 4: their scales would not lie where a GPU can write them.
    """
    num_rows = qkv.shape[0] * (shape.num_heads + 2 * shape.num_kv_heads)
    rotary_dim = shape.rotary_dim or shape.head_size
    rest = shape.head_size - rotary_dim
    least = 16 if kv_cache.dtype == torch.int8 else 1  # rows and columns of a product
    if least > 1 and shape.head_size % 4:
        raise ValueError(f"the triton kernels keep no int8 rows of {shape.head_size} numbers, only multiples of 4: set kv_cache_dtype")
    rows = max(least, 2048 // triton.next_power_of_2(shape.head_size))
    rotary_and_write_kv_kernel[(triton.cdiv(num_rows, rows),)](
        qkv,
        kv_cache,
        cos_sin,
        positions,
        slot_mapping,
        cos_sin if qk_norm is None else qk_norm.q,
        cos_sin if qk_norm is None else qk_norm.k,
        qkv.stride(0),
        kv_cache.stride(0),
        cos_sin.stride(0),
        num_rows,
        0.0 if qk_norm is None else qk_norm.eps,
        H=shape.num_heads,
        K=shape.num_kv_heads,
        D=shape.head_size,
        HALF=rotary_dim // 2,
        HALF_PAD=max(least, triton.next_power_of_2(rotary_dim // 2)),
        REST=rest,
        REST_PAD=max(least, triton.next_power_of_2(rest)) if rest else 1,
        ROW=kv_cache.shape[4],
        D_PAD=max(16, triton.next_power_of_2(shape.head_size)),
        BLOCK_SIZE=kv_cache.shape[3],
        ROWS=rows,
        HAS_NORM=qk_norm is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_rows"])
def rotary_and_write_kv_kernel(
    qkv_ptr,
    kv_cache_ptr,
    cos_sin_ptr,  # [max_positions, 2 * HALF] float32
    positions_ptr,  # [T] int32
    slot_mapping_ptr,  # [T] int64
    q_norm_ptr,  # [D], read when HAS_NORM
    k_norm_ptr,  # [D]
    qkv_stride,
    block_stride,
    cos_sin_stride,
    num_rows,  # T * (H + 2K)
    eps,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,  # rotary_dim // 2
    HALF_PAD: tl.constexpr,
    REST: tl.constexpr,  # dimensions of a head that are not rotated
    REST_PAD: tl.constexpr,
    ROW: tl.constexpr,  # elements of a row of the cache
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """A row is one head of one token: grid (cdiv(num_rows, ROWS)). Both halves of a rotated pair belong to one thread, which
    reads both before it writes either, so rotating in place is safe (Su et al., 2021, in the half-split form). A norm reads and writes
    each row within one program.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = rows < num_rows
    tokens = rows // (H + 2 * K)
    heads = rows % (H + 2 * K)
    is_value = heads >= H + K
    slots = tl.load(slot_mapping_ptr + tokens, mask=real, other=-1)
    cached = real & (heads >= H) & (slots >= 0)
    place = slots // BLOCK_SIZE * block_stride + ((heads - H) * BLOCK_SIZE + slots % BLOCK_SIZE) * ROW  # values follow the K key heads

    source = tokens.to(tl.int64) * qkv_stride + heads * D
    dims = tl.arange(0, HALF_PAD)
    inside = real[:, None] & (dims < HALF)[None, :]
    first_ptrs = qkv_ptr + source[:, None] + dims[None, :]
    first = tl.load(first_ptrs, mask=inside, other=0.0)
    second = tl.load(first_ptrs + HALF, mask=inside, other=0.0)
    if REST > 0:
        others = 2 * HALF + tl.arange(0, REST_PAD)
        rest_ptrs = qkv_ptr + source[:, None] + others[None, :]
        rest = tl.load(rest_ptrs, mask=(real if HAS_NORM else cached)[:, None] & (others < D)[None, :], other=0.0)
    if HAS_NORM:
        squares = tl.sum(first.to(tl.float32) * first.to(tl.float32) + second.to(tl.float32) * second.to(tl.float32), 1)
        if REST > 0:
            squares += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), 1)
        scale = tl.rsqrt(squares / D + eps)
        first = normed(first, scale, heads, q_norm_ptr, k_norm_ptr, dims, HALF, H, K)
        second = normed(second, scale, heads, q_norm_ptr, k_norm_ptr, HALF + dims, 2 * HALF, H, K)
        if REST > 0:
            rest = normed(rest, scale, heads, q_norm_ptr, k_norm_ptr, others, D, H, K)
            tl.store(rest_ptrs, rest, mask=(real & ~is_value)[:, None] & (others < D)[None, :])
    positions = tl.load(positions_ptr + tokens, mask=real, other=0).to(tl.int64)
    rotated = inside & ~is_value[:, None]
    cos_ptrs = cos_sin_ptr + positions[:, None] * cos_sin_stride + dims[None, :]
    cos = tl.load(cos_ptrs, mask=rotated, other=1.0).to(tl.float32)
    sin = tl.load(cos_ptrs + HALF, mask=rotated, other=0.0).to(tl.float32)
    first32, second32 = first.to(tl.float32), second.to(tl.float32)
    # The cache gets what the activations hold, hence the rounding to their type first.
    first = tl.where(rotated, (first32 * cos - second32 * sin).to(first.dtype), first)
    second = tl.where(rotated, (second32 * cos + first32 * sin).to(second.dtype), second)
    tl.store(first_ptrs, first, mask=rotated)
    tl.store(first_ptrs + HALF, second, mask=rotated)
    if ROW != D:
        if tl.max(cached.to(tl.int32), 0) > 0:
            columns = tl.arange(0, D_PAD)
            sums = tl.dot(first, signs(dims, columns, D, first.dtype), input_precision="ieee")
            sums = tl.dot(second, signs(HALF + dims, columns, D, first.dtype), sums, input_precision="ieee")
            if REST > 0:
                sums = tl.dot(rest, signs(others, columns, D, first.dtype), sums, input_precision="ieee")
            store_codes(kv_cache_ptr + place, sums * rotation_factor(D), cached, D)
    else:
        cache_ptrs = kv_cache_ptr + place[:, None] + dims[None, :]
        tl.store(cache_ptrs, as_cached(first, kv_cache_ptr.dtype.element_ty), mask=cached[:, None] & (dims < HALF)[None, :])
        tl.store(cache_ptrs + HALF, as_cached(second, kv_cache_ptr.dtype.element_ty), mask=cached[:, None] & (dims < HALF)[None, :])
        if REST > 0:
            stored = cached[:, None] & (others < D)[None, :]
            tl.store(kv_cache_ptr + place[:, None] + others[None, :], as_cached(rest, kv_cache_ptr.dtype.element_ty), mask=stored)


@triton.jit
def normed(values, scale, heads, q_norm_ptr, k_norm_ptr, dims, end, H: tl.constexpr, K: tl.constexpr):
    """[ROWS, dims] of heads of q and k times scale and weight, rounded as `rms_norm` does, and of values as they are."""
    q_weight = tl.load(q_norm_ptr + dims, mask=dims < end, other=0.0)
    k_weight = tl.load(k_norm_ptr + dims, mask=dims < end, other=0.0)
    weight = tl.where((heads < H)[:, None], q_weight[None, :], k_weight[None, :]).to(values.dtype).to(tl.float32)
    result = ((values.to(tl.float32) * scale[:, None]).to(values.dtype).to(tl.float32) * weight).to(values.dtype)
    return tl.where((heads < H + K)[:, None], result, values)


@triton.jit
def store_codes(row_ptrs, numbers, mask, D: tl.constexpr):
    """Rows of int8: codes of numbers [ROWS, D_PAD], zero behind D, and their scale. One that is no number makes the scale none, as in
    `kernels.kv_cache.encode_rows`.
    """
    largest = tl.max(tl.abs(numbers), 1)
    is_number = tl.sum(numbers * 0.0, 1) == 0.0
    inverse = tl.where(is_number, 127.0 / tl.where(largest > 0.0, largest, 1.0), 0.0)
    scaled = tl.where(is_number[:, None], numbers, 0.0) * inverse[:, None]
    codes = ((scaled + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 * 2**23 leaves no bits for a fraction: to the nearest, and even, integer
    dims = tl.arange(0, numbers.shape[1])
    tl.store(row_ptrs[:, None] + dims[None, :], codes, mask=mask[:, None] & (dims < D)[None, :])
    scales = tl.where(is_number, largest * (1.0 / 127.0), float("nan"))
    tl.store((row_ptrs + D).to(tl.pointer_type(tl.float32)), scales, mask=mask)


@triton.jit
def as_cached(values, dtype: tl.constexpr):
    """Keys or values in the type of the cache; 8-bit floats have no infinity: what is too large becomes their largest, not NaN."""
    if dtype == tl.float8e4nv:
        values = tl.minimum(tl.maximum(values.to(tl.float32), -448.0), 448.0)
    return values.to(dtype)

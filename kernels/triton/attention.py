"""Paged attention: which kernel computes which sequence, with which tiles."""

from __future__ import annotations

import math

import torch
import triton

from kernels.batch import AttentionShape, Batch
from kernels.triton.attention_decode import attention_decode_kernel
from kernels.triton.attention_merge import attention_merge_kernel
from kernels.triton.attention_prefill import attention_prefill_kernel
from kernels.triton.hadamard import rotate_queries

# Constants and not tuned at run time: they fix the order of every sum, so a change here changes bits.
SPLIT = 512  # keys of one decode program; a multiple of the tile
PREFILL_ROWS = 128  # query heads times tokens of one prefill program
FEW_PREFILL_ROWS = 32  # too few for wgmma, the instruction of sm_90 for 64 rows and more
DECODE_PROGRAMS = 2048  # of one launch, about: several for each processor of a large GPU
PARTIAL_FLOATS = 1 << 26  # 256 MiB: 64 sequences of 128,000 tokens with 32 heads of 128
# Sixteen rows are one tile of the tensor cores, which each warp of a decode computes in full: more warps share no more than the loads. But
# two have too few registers for the addresses of int8 rows and for float32.
TWO_WARPS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
ALIGNED_FLOATS = 32  # Triton compiles a kernel anew for addresses that are no multiples of 16 bytes


class PagedAttention:
    """Attention of a step's flat batch over the paged cache.

    Sequences with one query always go to the decode kernel, those with more to the prefill kernel; a mixed batch launches both, and
    each skips the other's sequences. So a decode is computed alike whatever it shares the step with, and a long context does not
    hang on one program because a prompt came along. Nothing is read back to the host: grids come from the batch's integers.

    The buffer for the partial sums of splits is allocated once and never moves (a captured CUDA graph keeps its address). Batches for
    which it is too small are decoded some sequences at a time: enough programs to fill a GPU, and the same bits. One stream only.

    `one_instruction` has prefill multiply with the instruction of decode (mma.sync) on sm_90 too, from smaller tiles, so that equal bits
    of both do not rest on two instructions that happen to round alike.

    In half precision, head sizes up to 128 compile without register spills. float32 of size 128, and size 256, spill.
    """

    def __init__(self, device: torch.device, *, one_instruction: bool = False) -> None:
        self._one_instruction = one_instruction
        self._partials = torch.empty(PARTIAL_FLOATS + ALIGNED_FLOATS, dtype=torch.float32, device=device)

    def __call__(self, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> torch.Tensor:
        """qkv [T, (H + 2K) * D], kv_cache [num_blocks, 2, K, block_size, row] -> [T, H * D]; the contract is `Ops.paged_attention`."""
        out = torch.empty((qkv.shape[0], shape.q_size), dtype=qkv.dtype, device=qkv.device)
        is_rotated = kv_cache.dtype == torch.int8
        if is_rotated:
            qkv = rotate_queries(qkv, shape)
        if batch.max_query_len > 1:
            self._prefill(out, qkv, kv_cache, batch, shape)
        # If all queries together are as many as if each sequence had the most of them, each has.
        if batch.max_query_len == 1 or batch.num_tokens < batch.num_seqs * batch.max_query_len:
            self._decode(out, qkv, kv_cache, batch, shape)
        return rotate_queries(out, shape, out) if is_rotated else out

    def _prefill(self, out: torch.Tensor, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> None:
        group = shape.num_heads // shape.num_kv_heads
        # float32 is not for the tensor cores, and takes twice the shared memory.
        few = self._one_instruction or qkv.element_size() == 4
        rows = max(FEW_PREFILL_ROWS if few else PREFILL_ROWS, triton.next_power_of_2(group))
        queries = rows // group
        attention_prefill_kernel[(batch.num_tokens // queries + batch.num_seqs, shape.num_kv_heads)](
            out,
            qkv,
            kv_cache,
            batch.block_tables,
            batch.query_start_loc,
            batch.seq_lens,
            qkv.stride(0),
            out.stride(0),
            batch.block_tables.stride(0),
            kv_cache.stride(0),
            shape.scale * math.log2(math.e),
            batch.num_seqs,
            **_tiles(kv_cache, shape),
            BLOCK_SIZE=kv_cache.shape[3],
            TILE=_tile(kv_cache, shape),
            ROWS=rows,
            QUERIES=queries,
            num_warps=8,
            enable_fp_fusion=False,
            num_stages=2 if kv_cache.dtype == torch.int8 else 3,  # the addresses of int8 rows take registers
        )

    def _decode(self, out: torch.Tensor, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> None:
        num_splits = triton.cdiv(batch.max_seq_len, SPLIT)
        if shape.sliding_window is not None:
            num_splits = min(num_splits, triton.cdiv(shape.sliding_window, SPLIT) + 1)
        if num_splits == 1:
            self._launch_decode(out, qkv, kv_cache, batch, shape, range(batch.num_seqs), 1)
            return
        fitting = PARTIAL_FLOATS // (shape.num_heads * num_splits * (shape.head_size + 2))
        if fitting == 0:
            raise ValueError(f"the attention buffer holds no context of {batch.max_seq_len} tokens: lower max_model_len")
        for first in range(0, batch.num_seqs, fitting):
            seqs = range(first, min(first + fitting, batch.num_seqs))
            self._launch_decode(out, qkv, kv_cache, batch, shape, seqs, num_splits)

    def _launch_decode(
        self,
        out: torch.Tensor,
        qkv: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: Batch,
        shape: AttentionShape,
        seqs: range,
        num_splits: int,
    ) -> None:
        num_stats = triton.cdiv(len(seqs) * shape.num_heads * num_splits * 2, ALIGNED_FLOATS) * ALIGNED_FLOATS
        partials = (self._partials[num_stats:], self._partials)  # accumulators behind tops and totals
        rows = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
        programs = min(num_splits, triton.cdiv(DECODE_PROGRAMS, len(seqs) * shape.num_kv_heads))
        attention_decode_kernel[(len(seqs), shape.num_kv_heads, programs)](
            out,
            *partials,
            qkv,
            kv_cache,
            batch.block_tables,
            batch.query_start_loc,
            batch.seq_lens,
            qkv.stride(0),
            out.stride(0),
            batch.block_tables.stride(0),
            kv_cache.stride(0),
            shape.scale * math.log2(math.e),
            seqs.start,
            num_splits,
            **_tiles(kv_cache, shape),
            BLOCK_SIZE=kv_cache.shape[3],
            TILE=_tile(kv_cache, shape),
            ROWS=max(16, rows),
            PARTIAL=num_splits > 1,
            num_warps=2 if kv_cache.dtype in TWO_WARPS else 4,
            # Said aloud, this limit keeps ptxas from spilling a few bytes so that one program more might fit.
            maxnreg=255 if kv_cache.dtype in TWO_WARPS else None,
            enable_fp_fusion=False,
            # As deep a pipeline as registers and shared memory allow.
            num_stages=3 if kv_cache.element_size() == 4 else 5 if num_splits > 1 or kv_cache.dtype == torch.int8 else 4,
        )
        if num_splits > 1:
            attention_merge_kernel[(len(seqs), shape.num_kv_heads)](
                out,
                *partials,
                batch.query_start_loc,
                batch.seq_lens,
                out.stride(0),
                seqs.start,
                num_splits,
                **_tiles(kv_cache, shape),
                ROWS=rows,
                num_warps=4,
                enable_fp_fusion=False,
            )


def _tile(kv_cache: torch.Tensor, shape: AttentionShape) -> int:
    """Keys per step of a program: as many as registers hold on sm_80, beside the sums of a wide head, or the addresses of int8 rows."""
    if kv_cache.dtype == torch.int8:
        return 16 if shape.sliding_window else 32
    return 64 if shape.head_size <= 64 else 32


def _tiles(kv_cache: torch.Tensor, shape: AttentionShape) -> dict[str, int]:
    """The constants that all three kernels take."""
    return {
        "GROUP": shape.num_heads // shape.num_kv_heads,
        "K": shape.num_kv_heads,
        "D": shape.head_size,
        "D_PAD": max(16, triton.next_power_of_2(shape.head_size)),
        "ROW": kv_cache.shape[4],
        "SPLIT": SPLIT,
        "WINDOW": shape.sliding_window or 0,
    }

"""What one forward pass is about: a flat list of tokens and where their keys and values live."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.sampling import Draws


@dataclass(frozen=True)
class AttentionShape:
    """The numbers of one attention layer."""

    num_heads: int  # query heads
    num_kv_heads: int  # key and value heads; num_heads is a multiple of it (grouped-query attention)
    head_size: int
    scale: float  # multiplies q.k before the softmax
    sliding_window: int | None = None  # a query at p sees keys in (p - sliding_window, p]; None: all keys up to p
    rotary_dim: int | None = None  # leading dimensions of a head that are rotated; None: all of them

    @property
    def qkv_size(self) -> int:
        """Columns of a fused projection: all query heads, then key heads, then value heads."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size


@dataclass(frozen=True)
class QkNorm:
    """Root-mean-square norms over the dimensions of each query and key head, before they are rotated (Qwen3)."""

    q: torch.Tensor  # [head_size] float32
    k: torch.Tensor  # [head_size] float32
    eps: float


@dataclass
class Batch:
    """One step's flat token batch. Prefill chunks and single decode tokens stand side by side.

    The tensors are views of buffers that live as long as the runner, at fixed addresses: a captured CUDA graph or a recorded
    CPU plan reads the next step's values from the same place. Sequence s owns tokens
    [query_start_loc[s], query_start_loc[s + 1]), which are its positions [seq_lens[s] - query_len, seq_lens[s]).
    """

    num_tokens: int
    num_seqs: int
    max_query_len: int  # of any sequence in this step; 1 means that all are decodes
    max_seq_len: int
    token_ids: torch.Tensor  # [num_tokens] int32
    positions: torch.Tensor  # [num_tokens] int32, place of the token in its sequence
    slot_mapping: torch.Tensor  # [num_tokens] int64, block * block_size + offset where this token's key and value go; negative: nowhere
    query_start_loc: torch.Tensor  # [num_seqs + 1] int32
    seq_lens: torch.Tensor  # [num_seqs] int32, tokens in the cache once this step has written its own
    block_tables: torch.Tensor  # [num_seqs, max_blocks] int32, rows are padded with anything
    logits_indices: torch.Tensor  # [num_logits] int32, tokens whose logits are wanted
    draws: Draws | None = None  # of passes that draw their tokens themselves (`kernels.ops.DrawingOps`)

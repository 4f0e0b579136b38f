"""Every operation in plain PyTorch: slow, obviously right, the oracle that the fast sets are tested against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.kv_cache import decode_rows, encode_rows
from kernels.reference.logprobs import logprobs
from kernels.reference.sampling import sample
from kernels.sampling import DrawSettings, RowLogprobs
from kernels.weights import Weight


@dataclass(frozen=True)
class ReferenceLinear:
    weight: torch.Tensor  # [out_features, in_features]
    bias: torch.Tensor | None  # [out_features]


class ReferenceOps:
    """The contracts of `kernels.ops.Ops`, word for word. Computes in `dtype`; norms and softmax in float32."""

    name = "reference"
    batch_invariant = False
    kv_dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn)

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def pack_linear(self, weight: Weight, bias: torch.Tensor | None) -> ReferenceLinear:
        dense = weight.dequantize().to(self.device, self.dtype)
        return ReferenceLinear(dense, None if bias is None else bias.to(self.device, self.dtype))

    def embedding(self, token_ids: torch.Tensor, table: ReferenceLinear) -> torch.Tensor:
        return F.embedding(token_ids, table.weight)

    def linear(self, x: torch.Tensor, weight: ReferenceLinear) -> torch.Tensor:
        return F.linear(x, weight.weight, weight.bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
        return normed.to(x.dtype) * weight.to(x.dtype)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def gelu_tanh_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up

    def rotary_and_write_kv(
        self,
        qkv: torch.Tensor,
        kv_cache: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: Batch,
        shape: AttentionShape,
        qk_norm: QkNorm | None = None,
    ) -> None:
        num_tokens = qkv.shape[0]
        heads = qkv.view(num_tokens, -1, shape.head_size)
        num_rotated = shape.num_heads + shape.num_kv_heads
        if qk_norm is not None:
            heads[:, : shape.num_heads] = self.rms_norm(heads[:, : shape.num_heads], qk_norm.q, qk_norm.eps)
            heads[:, shape.num_heads : num_rotated] = self.rms_norm(heads[:, shape.num_heads : num_rotated], qk_norm.k, qk_norm.eps)
        rotary_dim = shape.rotary_dim or shape.head_size
        cos, sin = cos_sin[batch.positions.long(), :rotary_dim].float().unsqueeze(1).chunk(2, dim=-1)
        first, second = heads[:, :num_rotated, :rotary_dim].float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads[:, :num_rotated, :rotary_dim] = rotated.to(qkv.dtype)

        block_size = kv_cache.shape[3]
        slots = batch.slot_mapping
        written = slots >= 0
        blocks, offsets = slots[written] // block_size, slots[written] % block_size
        keys_values = heads[written, shape.num_heads :].view(-1, 2, shape.num_kv_heads, shape.head_size)
        kv_cache[blocks, :, :, offsets] = encode_rows(keys_values, kv_cache.dtype)

    def paged_attention(self, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> torch.Tensor:
        num_tokens = qkv.shape[0]
        out = qkv.new_zeros(num_tokens, shape.num_heads, shape.head_size)
        queries = qkv[:, : shape.q_size].view(num_tokens, shape.num_heads, shape.head_size)
        block_size = kv_cache.shape[3]
        starts = batch.query_start_loc.tolist()
        for s, seq_len in enumerate(batch.seq_lens.tolist()):
            start, stop = starts[s], starts[s + 1]
            blocks = batch.block_tables[s, : -(-seq_len // block_size)].long()
            # [2, K, context, D]
            rows = kv_cache[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :seq_len]
            context = decode_rows(rows, shape.head_size)
            keys, values = context.repeat_interleave(shape.num_heads // shape.num_kv_heads, dim=1)
            scores = torch.einsum("thd,hcd->htc", queries[start:stop].float(), keys) * shape.scale
            query_positions = torch.arange(seq_len - (stop - start), seq_len, device=qkv.device).unsqueeze(1)
            key_positions = torch.arange(seq_len, device=qkv.device).unsqueeze(0)
            visible = key_positions <= query_positions
            if shape.sliding_window is not None:
                visible &= key_positions > query_positions - shape.sliding_window
            scores.masked_fill_(~visible, float("-inf"))
            out[start:stop] = torch.einsum("htc,hcd->thd", scores.softmax(-1), values).to(out.dtype)
        return out.view(num_tokens, -1)

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x[rows.long()]

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
        target[pairs[:, 1]] = source[pairs[:, 0]]

    def sample(self, logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
        return sample(logits, settings)

    def logprobs(self, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
        return logprobs(logits, token_ids, num_top)

"""Self-attention over the paged KV cache."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.parameters import Parameters
from engine.model_config import ModelConfig
from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.ops import Ops


class Attention:
    """Grouped-query attention with rotary positions. Keys and values, also of this step's tokens, are read back from the cache."""

    def __init__(self, parameters: Parameters, name: str, config: ModelConfig, shape: AttentionShape):
        kv_size = shape.num_kv_heads * shape.head_size
        projections = {f"{name}.q_proj": shape.q_size, f"{name}.k_proj": kv_size, f"{name}.v_proj": kv_size}
        self.shape = shape
        self.qkv_proj = Linear(parameters, projections, config.hidden_size, bias=config.attention_bias)
        self.o_proj = Linear(parameters, {f"{name}.o_proj": config.hidden_size}, shape.q_size, bias=config.attention_output_bias)
        self._norms: list[RMSNorm] = []
        if config.qk_norm:
            self._norms = [RMSNorm(parameters, f"{name}.{norm}", shape.head_size, config.rms_norm_eps) for norm in ("q_norm", "k_norm")]

    def __call__(self, ops: Ops, x: torch.Tensor, kv_cache: torch.Tensor, cos_sin: torch.Tensor, batch: Batch) -> torch.Tensor:
        qkv = self.qkv_proj(ops, x)
        ops.rotary_and_write_kv(qkv, kv_cache, cos_sin, batch, self.shape, self._qk_norm())
        return self.o_proj(ops, ops.paged_attention(qkv, kv_cache, batch, self.shape))

    def _qk_norm(self) -> QkNorm | None:
        if not self._norms:
            return None
        q, k = self._norms
        return QkNorm(q.weight, k.weight, q.eps)

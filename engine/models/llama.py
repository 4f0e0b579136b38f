"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2 and 3, and all that share their layers.

Touvron et al. (2023), Jiang et al. (2023), Yang et al. (2024 and 2025). What its members differ in, biases, norms of q and k, a window,
is in their ModelConfig.
"""

from __future__ import annotations

import torch

from engine.errors import ModelLoadError
from engine.layers.attention import Attention
from engine.layers.linear import Embedding, Linear
from engine.layers.norm import RMSNorm
from engine.layers.parameters import Parameters
from engine.layers.rotary import build_cos_sin
from engine.model_config import ModelConfig
from kernels.batch import AttentionShape, Batch
from kernels.ops import Ops


class LlamaForCausalLM:
    """Embedding, decoder layers, a last norm, and the output layer."""

    def __init__(self, config: ModelConfig, max_model_len: int, device: torch.device) -> None:
        self.parameters = Parameters()
        shape = AttentionShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.head_size**-0.5,
            sliding_window=config.sliding_window,
            rotary_dim=config.rope.rotary_dim,
        )
        self.attention_shapes = [shape] * config.num_layers
        self.cos_sin = build_cos_sin(config.rope, max_model_len, config.max_position_embeddings).to(device)
        self.embed_tokens = Embedding(self.parameters, "model.embed_tokens", config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(self.parameters, f"model.layers.{i}", config, shape) for i in range(config.num_layers)]
        self.norm = RMSNorm(self.parameters, "model.norm", config.hidden_size, config.rms_norm_eps)
        self.lm_head: Linear | Embedding = self.embed_tokens
        if config.tie_word_embeddings:
            self.parameters.ignore("lm_head.weight")
        else:
            self.lm_head = Linear(self.parameters, {"lm_head": config.vocab_size}, config.hidden_size)

    def forward(self, ops: Ops, batch: Batch, kv_caches: list[torch.Tensor]) -> torch.Tensor:
        return self.logits(ops, self.hidden_states(ops, batch, kv_caches), batch)

    def hidden_states(self, ops: Ops, batch: Batch, kv_caches: list[torch.Tensor]) -> torch.Tensor:
        residual = self.embed_tokens(ops, batch.token_ids)  # [num_tokens, hidden_size]
        x: torch.Tensor | None = None
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            x, residual = layer(ops, x, residual, kv_cache, self.cos_sin, batch)
        assert x is not None
        x, _ = self.norm.add(ops, x, residual)
        return x

    def logits(self, ops: Ops, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        return ops.linear(ops.gather_rows(hidden_states, batch.logits_indices), self.lm_head.packed)


class DecoderLayer:
    """Attention, then a gated feed-forward network, each behind a norm and added to the residual stream."""

    def __init__(self, parameters: Parameters, name: str, config: ModelConfig, shape: AttentionShape) -> None:
        self.input_layernorm = RMSNorm(parameters, f"{name}.input_layernorm", config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(parameters, f"{name}.self_attn", config, shape)
        self.post_attention_layernorm = RMSNorm(parameters, f"{name}.post_attention_layernorm", config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(parameters, f"{name}.mlp", config)

    def __call__(
        self,
        ops: Ops,
        x: torch.Tensor | None,  # what the layer before adds to the residual stream; None in the first layer
        residual: torch.Tensor,
        kv_cache: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: Batch,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x is None:
            x = self.input_layernorm(ops, residual)
        else:
            x, residual = self.input_layernorm.add(ops, x, residual)
        x = self.self_attn(ops, x, kv_cache, cos_sin, batch)
        x, residual = self.post_attention_layernorm.add(ops, x, residual)
        return self.mlp(ops, x), residual


class GatedMLP:
    """down(act(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, parameters: Parameters, name: str, config: ModelConfig) -> None:
        size = config.intermediate_size
        gate_up = {f"{name}.gate_proj": size, f"{name}.up_proj": size}
        self.gate_up_proj = Linear(parameters, gate_up, config.hidden_size, bias=config.mlp_bias)
        self.down_proj = Linear(parameters, {f"{name}.down_proj": config.hidden_size}, size, bias=config.mlp_bias)
        if config.hidden_act not in ("silu", "gelu_pytorch_tanh"):
            raise ModelLoadError(f"activation {config.hidden_act!r} is not supported; supported are silu and gelu_pytorch_tanh")
        self._gelu = config.hidden_act == "gelu_pytorch_tanh"

    def __call__(self, ops: Ops, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up_proj(ops, x)
        return self.down_proj(ops, ops.gelu_tanh_and_mul(gate_up) if self._gelu else ops.silu_and_mul(gate_up))

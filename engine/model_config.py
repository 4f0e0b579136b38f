"""The shape of a model, whichever file it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.pooling_params import Pooling


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al., 2021) and its scaling."""

    theta: float = 10000.0
    rotary_dim: int = 64  # leading dimensions of a head that are rotated
    # default, linear, dynamic, yarn, longrope, llama3: the names of transformers' `rope_type`
    kind: str = "default"
    # The other keys of transformers' `rope_scaling`/`rope_parameters`: factor, original_max_position_embeddings, ...
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig:
    """What the layers need to know of a checkpoint, under Hugging Face's names where there is one."""

    architecture: str  # "LlamaForCausalLM", "MistralForCausalLM", ...: the key of the model registry
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    max_position_embeddings: int  # the context length that the checkpoint was made for, scaling included
    rope: RopeConfig
    sliding_window: int | None = None  # tokens; None: full attention
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # q, k and v projections have a bias
    attention_output_bias: bool = False  # the o projection has one
    qk_norm: bool = False  # each head of q and k is normed before it is rotated
    mlp_bias: bool = False
    hidden_act: str = "silu"
    dtype: str = "float32"  # of the checkpoint: "float32", "float16", "bfloat16"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pooling: Pooling | None = None  # how the checkpoint was trained to give embeddings; None: it was not


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """Longest prompt plus output, in tokens. Raises ConfigError when more is asked for than the model can do."""
    if config.max_model_len is None:
        return model.max_position_embeddings
    if config.max_model_len > model.max_position_embeddings and model.rope.kind != "dynamic":
        raise ConfigError(
            f"max_model_len {config.max_model_len} exceeds the model's context length of {model.max_position_embeddings} tokens"
        )
    return config.max_model_len


def resolve_pooling(config: EngineConfig, model: ModelConfig) -> Pooling:
    """How hidden states become an embedding: as the settings say, or the checkpoint, or by their mean (docs/embeddings.md says why)."""
    return (model.pooling or "mean") if config.pooling == "auto" else config.pooling

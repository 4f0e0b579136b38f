"""The models, by the architecture names of Hugging Face configs."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.errors import ModelLoadError
from engine.layers.parameters import Parameters
from engine.model_config import ModelConfig
from kernels.batch import AttentionShape, Batch
from kernels.ops import Ops


class Model(Protocol):
    """A decoder that computes one flat token batch at a time."""

    parameters: Parameters
    attention_shapes: list[AttentionShape]  # of each layer: what the KV cache must hold

    def __init__(self, config: ModelConfig, max_model_len: int, device: torch.device) -> None: ...

    def forward(self, ops: Ops, batch: Batch, kv_caches: list[torch.Tensor]) -> torch.Tensor:
        """Logits [num_logits, vocab_size] at `batch.logits_indices`, written only as calls of `ops`.

        These are `logits` of the `hidden_states`.
        """
        ...

    def hidden_states(self, ops: Ops, batch: Batch, kv_caches: list[torch.Tensor]) -> torch.Tensor:
        """What the last norm gives for each token [num_tokens, hidden_size], written only as calls of `ops`."""
        ...

    def logits(self, ops: Ops, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The rest of `forward`."""
        ...


def build_model(config: ModelConfig, max_model_len: int, device: torch.device) -> Model:
    """The model of config's architecture, its weights yet to come. Raises ModelLoadError if there is none."""
    from engine.models.llama import LlamaForCausalLM

    family = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    registry: dict[str, type[Model]] = dict.fromkeys(family, LlamaForCausalLM)
    if config.architecture not in registry:
        raise ModelLoadError(f"architecture {config.architecture} is not supported; supported are {', '.join(sorted(registry))}")
    return registry[config.architecture](config, max_model_len, device)

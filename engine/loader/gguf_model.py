"""A model in one GGUF file."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelLoadError
from engine.loader.fingerprint import fingerprint_file
from engine.loader.gguf_file import GgufFile
from engine.model_config import ModelConfig, RopeConfig
from engine.pooling_params import Pooling

if TYPE_CHECKING:
    import torch

    from engine.loader.model_source import Progress
    from engine.tokenizer import Tokenizer
    from kernels.weights import Weight

# GGUF's general.architecture to the key of the model registry. llama.cpp writes Mistral models as "llama" too.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral3": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_POOLINGS: dict[int, Pooling | None] = {0: None, 1: "mean", 3: "last"}  # GGUF's numbers


class GgufSource:
    """The ModelSource of a GGUF file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.file = GgufFile(path)
        architecture = self.file.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise ModelLoadError(
                f"{path}: models of architecture {architecture!r} are not supported; supported are {', '.join(ARCHITECTURES)}"
            )
        num_parts = self.file.metadata.get("split.count", 1)
        if num_parts != 1:
            raise ModelLoadError(f"{path} is one of {num_parts} parts of a model: join them with llama.cpp's `llama-gguf-split --merge`")
        self._prefix = f"{architecture}."

    def config(self) -> ModelConfig:
        hidden_size = self._count("embedding_length")
        num_heads = self._count("attention.head_count")
        head_size = self._count("attention.key_length", default=hidden_size // num_heads)
        if self._count("attention.value_length", default=head_size) != head_size:
            raise ModelLoadError(f"{self.path}: keys and values of different sizes are not supported")
        if self._get("expert_count", int, 0):
            raise ModelLoadError(f"{self.path}: mixtures of experts are not supported")
        if self._get("attention.temperature_scale", float, 0.0):
            raise ModelLoadError(f"{self.path}: attention whose temperature grows with the position is not supported")
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelLoadError(f"{self.path} has no token embedding: it is damaged or only a part of a model")
        from engine.loader.gguf_tokenizer import bos_token_id, eos_token_ids

        context_length = self._count("context_length")
        return ModelConfig(
            architecture=ARCHITECTURES[self._prefix[:-1]],
            vocab_size=embedding.shape[0],
            hidden_size=hidden_size,
            intermediate_size=self._count("feed_forward_length"),
            num_layers=self._count("block_count"),
            num_heads=num_heads,
            num_kv_heads=self._count("attention.head_count_kv", default=num_heads),
            head_size=head_size,
            rms_norm_eps=self._get("attention.layer_norm_rms_epsilon", float, 1e-5),
            max_position_embeddings=context_length,
            rope=self._rope(head_size, context_length),
            sliding_window=self._get("attention.sliding_window", int, 0) or None,
            tie_word_embeddings="output.weight" not in self.file.tensors,
            attention_bias="blk.0.attn_q.bias" in self.file.tensors,
            attention_output_bias="blk.0.attn_output.bias" in self.file.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in self.file.tensors,
            mlp_bias="blk.0.ffn_gate.bias" in self.file.tensors,
            dtype=self._dtype(),
            bos_token_id=bos_token_id(self.file),
            eos_token_ids=eos_token_ids(self.file),
            pooling=self._pooling(),
        )

    def tokenizer(self) -> Tokenizer:
        from engine.loader.gguf_tokenizer import build_tokenizer

        return build_tokenizer(self.file)

    def chat_template(self) -> str | None:
        template = self.file.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def generation_defaults(self) -> dict[str, Any]:
        return {}

    def weights(self, progress: Progress | None = None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
        from engine.loader.gguf_weights import read_weights

        return read_weights(self.file, self.config(), progress)

    def fingerprint(self) -> str:
        return fingerprint_file(self.path, self.file.data_offset)

    def _pooling(self) -> Pooling | None:
        """Raises ModelLoadError for a kind that is not supported: its embeddings would be wrong."""
        kind = self._get("pooling_type", int, 0)
        if kind not in _POOLINGS:
            raise ModelLoadError(f"{self.path}: pooling of kind {kind} is not supported; supported are 1 (mean) and 3 (last)")
        return _POOLINGS[kind]

    def _rope(self, head_size: int, context_length: int) -> RopeConfig:
        kind = self._get("rope.scaling.type", str, "none")
        factor = self._get("rope.scaling.factor", float, 0.0) or self._get("rope.scale_linear", float, 0.0)
        parameters: dict[str, Any] = {}
        if factor < 0.0:
            raise ModelLoadError(f"{self.path} is damaged: the rotary scaling factor is {factor}")
        if kind not in ("none", "linear", "yarn"):
            raise ModelLoadError(f"{self.path}: rotary scaling of kind {kind!r} is not supported in a GGUF; supported are linear, yarn")
        if f"{self._prefix}rope.scaling.type" not in self.file.metadata and factor:
            kind = "linear"  # llama.cpp's default for a factor without a type
        if kind == "none" or factor in (0.0, 1.0):
            kind = "default"
        else:
            parameters["factor"] = factor
        if kind == "yarn":
            original = self._get("rope.scaling.original_context_length", int, 0)
            parameters["original_max_position_embeddings"] = original or round(context_length / factor)
            parameters["beta_fast"] = self._get("rope.scaling.yarn_beta_fast", float, 32.0)
            parameters["beta_slow"] = self._get("rope.scaling.yarn_beta_slow", float, 1.0)
            attention_factor = self._get("rope.scaling.attn_factor", float, 1.0)
            # The file's factor multiplies the one that follows from the scaling (Peng et al., 2023, section 3.4).
            parameters["attention_factor"] = attention_factor * (0.1 * math.log(factor) + 1.0)
        if (freq_factors := self._frequency_factors()) is not None:
            parameters["freq_factors"] = freq_factors
        rotary_dim = self._count("rope.dimension_count", default=head_size)
        if rotary_dim > head_size or rotary_dim % 2:
            raise ModelLoadError(f"{self.path} is damaged: {rotary_dim} rotary dimensions in heads of {head_size}")
        return RopeConfig(theta=self._get("rope.freq_base", float, 10000.0), rotary_dim=rotary_dim, kind=kind, parameters=parameters)

    def _frequency_factors(self) -> list[float] | None:
        """What each rotary frequency is divided by: how llama.cpp stores Llama 3's scaling."""
        tensor = self.file.tensors.get("rope_freqs.weight")
        if tensor is None:
            return None
        if tensor.type.name != "F32" or len(tensor.shape) != 1:
            raise ModelLoadError(f"{self.path} is damaged: rope_freqs.weight is not a vector of float32")
        return list(struct.unpack_from(f"<{tensor.shape[0]}f", self.file.data, tensor.offset))

    def _dtype(self) -> str:
        """The type that most of the weights are in; quantised weights were bfloat16 as a rule."""
        num_bytes: dict[str, int] = {}
        for tensor in self.file.tensors.values():
            num_bytes[tensor.type.name] = num_bytes.get(tensor.type.name, 0) + tensor.num_bytes
        return {"F32": "float32", "F16": "float16"}.get(max(num_bytes, key=lambda name: num_bytes[name]), "bfloat16")

    def _count(self, key: str, default: int | None = None) -> int:
        """A positive number of the model's shape. Some converters write one per layer: all must be equal."""
        value = self.file.metadata.get(self._prefix + key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.path}: {self._prefix}{key} must be a positive number, but is {value!r}")
        return value

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self.file.metadata.get(self._prefix + key, default)
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, float) and not math.isfinite(value)):
            raise ModelLoadError(f"{self.path} is damaged: {self._prefix}{key} is {value!r}")
        return value

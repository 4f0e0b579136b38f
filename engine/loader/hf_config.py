"""Hugging Face's config.json as a ModelConfig.

Parsed here and not by transformers' AutoConfig, which takes two seconds to import. Files written by transformers 4 (`rope_theta` and
`rope_scaling`) and by transformers 5 (`rope_parameters`) are understood.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.loader.hf_pooling import read_pooling
from engine.loader.json_file import read_json
from engine.model_config import ModelConfig, RopeConfig
from engine.pooling_params import Pooling

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Checkpoints of embedding models, which have no output layer.
HEADLESS = {name.replace("ForCausalLM", "Model"): name for name in ARCHITECTURES}
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_DTYPES = ("float32", "float16", "bfloat16")


def read_config(directory: Path) -> ModelConfig:
    """The shape of the model in a directory, with the end tokens that generation_config.json and the tokenizer's settings add.

    Raises ModelLoadError for a model that is not supported or a value that cannot be.
    """
    path = directory / "config.json"
    fields = _Fields(path, read_json(path))
    generation = read_generation_config(directory)
    eos_ids = [*_ids(fields.values.get("eos_token_id")), *_ids(generation.get("eos_token_id")), *_eos_ids_of_tokenizer(directory)]
    return fields.model_config(tuple(dict.fromkeys(eos_ids)), read_pooling(directory))


def is_headless(config: dict[str, Any]) -> bool:
    """Whether a config.json is of an embedding model, without an output layer."""
    named = config.get("architectures")
    return isinstance(named, list) and any(isinstance(name, str) and name in HEADLESS for name in named)


def read_generation_config(directory: Path) -> dict[str, Any]:
    """generation_config.json, empty when there is none."""
    path = directory / "generation_config.json"
    return read_json(path) if path.is_file() else {}


class _Fields:
    """The values of one config.json, each checked as it is taken out."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values

    def model_config(self, eos_token_ids: tuple[int, ...], pooling: Pooling | None) -> ModelConfig:
        architecture = self._architecture()
        self._refuse_quantization()
        hidden_size = self._count("hidden_size")
        num_heads = self._count("num_attention_heads")
        head_size = self._count("head_dim", default=max(1, hidden_size // num_heads))
        num_kv_heads = self._count("num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise self._error(f"num_key_value_heads {num_kv_heads} does not divide num_attention_heads {num_heads}")
        # Mistral has no bias, and Qwen2 always has those of q, k and v, whatever the file says.
        attention_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and bool(self.values.get("attention_bias", False))
        rope, context_length = self._rope(head_size)
        return ModelConfig(
            architecture=architecture,
            vocab_size=self._count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self._count("intermediate_size"),
            num_layers=self._count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            rms_norm_eps=self._number("rms_norm_eps", 1e-6),
            max_position_embeddings=context_length,
            rope=rope,
            sliding_window=self._sliding_window(architecture),
            # The output layer of a checkpoint that has none is never used, and so costs nothing.
            tie_word_embeddings=bool(self.values.get("tie_word_embeddings", False)) or is_headless(self.values),
            attention_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            attention_output_bias=attention_bias,
            qk_norm=architecture == "Qwen3ForCausalLM",
            mlp_bias=architecture == "LlamaForCausalLM" and bool(self.values.get("mlp_bias", False)),
            hidden_act=str(self.values.get("hidden_act", "silu")),
            dtype=self._dtype(),
            bos_token_id=next(iter(_ids(self.values.get("bos_token_id"))), None),
            eos_token_ids=eos_token_ids,
            pooling=pooling,
        )

    def _architecture(self) -> str:
        named = self.values.get("architectures") or []
        for name, architecture in (*zip(ARCHITECTURES, ARCHITECTURES, strict=True), *HEADLESS.items()):
            if isinstance(named, list) and name in named:
                return architecture
        what = ", ".join(map(str, named)) if isinstance(named, list) and named else "no architecture"
        raise self._error(f"it names {what}; supported are {', '.join(ARCHITECTURES)}")

    def _refuse_quantization(self) -> None:
        quantization = self.values.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
            raise self._error(f"checkpoints quantised by {method} are not supported: use the original weights or a GGUF file")

    def _sliding_window(self, architecture: str) -> int | None:
        if architecture.startswith("Qwen") and self.values.get("use_sliding_window"):
            raise self._error("a sliding window in some of the layers is not supported: set use_sliding_window to false for full attention")
        if architecture != "MistralForCausalLM" or self.values.get("sliding_window") is None:
            return None
        return self._count("sliding_window")

    def _rope(self, head_size: int) -> tuple[RopeConfig, int]:
        """The rotary embedding, and the context length that it gives."""
        scaling = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise self._error(f"its rotary scaling must be an object, but is {scaling!r}")
        parameters = dict(scaling)
        old_kind = parameters.pop("type", "default")
        kind = parameters.pop("rope_type", old_kind)
        theta = parameters.pop("rope_theta", self.values.get("rope_theta", 10000.0))
        partial = parameters.pop("partial_rotary_factor", self.values.get("partial_rotary_factor", 1.0))
        if kind not in ROPE_KINDS:
            raise self._error(f"rotary scaling of kind {kind!r} is not supported; supported are {', '.join(ROPE_KINDS)}")
        if not _is_positive(theta) or not _is_positive(partial) or partial > 1:
            raise self._error(f"rope_theta {theta!r} and partial_rotary_factor {partial!r} must be positive, the latter at most 1")
        if kind != "default" and kind != "longrope" and not _is_positive(parameters.get("factor")):
            raise self._error(f"rotary scaling of kind {kind!r} needs a positive factor, but has {parameters.get('factor')!r}")
        rotary_dim = int(head_size * partial)
        if rotary_dim < 2 or rotary_dim % 2:
            raise self._error(f"{rotary_dim} rotary dimensions in heads of {head_size} are not supported: they must be even")
        context_length = self._count("max_position_embeddings", default=2048)
        original = parameters.get("original_max_position_embeddings", self.values.get("original_max_position_embeddings"))
        if kind != "default" and _is_positive(original):
            parameters["original_max_position_embeddings"] = original
        if kind == "yarn" and _is_positive(original):
            # Some files give the length before scaling, others the one after it.
            context_length = max(context_length, int(original * parameters["factor"]))
        return RopeConfig(theta=float(theta), rotary_dim=rotary_dim, kind=kind, parameters=parameters), context_length

    def _dtype(self) -> str:
        dtype = str(self.values.get("dtype") or self.values.get("torch_dtype") or "float32").removeprefix("torch.")
        if dtype not in _DTYPES:
            raise self._error(f"weights of type {dtype} are not supported; supported are {', '.join(_DTYPES)}")
        return dtype

    def _count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(f"{key} must be a positive whole number, but is {value!r}")
        return value

    def _number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not _is_positive(value):
            raise self._error(f"{key} must be a positive number, but is {value!r}")
        return float(value)

    def _error(self, message: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {message}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _ids(value: Any) -> list[int]:
    """Token ids, given as one, as several, or as none."""
    values = value if isinstance(value, list) else [value]
    return [token_id for token_id in values if isinstance(token_id, int) and not isinstance(token_id, bool)]


def _eos_ids_of_tokenizer(directory: Path) -> list[int]:
    """The id of the tokenizer's own end token. Chat models tuned from a base model often name theirs only there.

    transformers 4 wrote the ids of special tokens beside their names; otherwise they stand in the much larger tokenizer.json.
    """
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return []
    settings = read_json(path)
    eos = settings.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    by_id = settings.get("added_tokens_decoder")
    if isinstance(by_id, dict):
        tokens = [(token_id, token) for token_id, token in by_id.items() if str(token_id).isdecimal()]
    elif eos is not None and (directory / "tokenizer.json").is_file():
        added = read_json(directory / "tokenizer.json").get("added_tokens")
        tokens = [(token.get("id"), token) for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    else:
        tokens = []
    return [int(token_id) for token_id, token in tokens if isinstance(token, dict) and token.get("content") == eos and token_id is not None]

"""The settings of the engine. Everything comes in here; nothing deep in the code reads the environment."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from engine.errors import ConfigError
from engine.logits_processors import LogitsProcessorRegistry

GIB = 1 << 30


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. The field names are those that vLLM's users know; the command line takes each as a flag.

    Raises ConfigError when a value is out of range or contradicts another.
    """

    model: str | None = _setting(None, "GGUF file, Hugging Face directory or hub id; none: the default model, SmolLM2-135M-Instruct")
    revision: str | None = _setting(None, "branch, tag or commit on the hub")
    load_format: Literal["auto", "dummy"] = _setting("auto", "dummy: random weights of the model's shapes")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = _setting(
        "auto",
        "type of activations, of the KV cache, and of weights that are not quantised; the cpu kernels compute in float32 whatever it is; "
        "auto: the checkpoint's on CUDA, on the CPU float32 with weights as the file stores them",
    )
    quantization: Literal["auto", "none", "int8", "int4", "fp8"] = _setting(
        "auto",
        "auto: weights stay as the file stores them; none: dequantised to dtype; "
        "int8, int4: weights stored as floats are rounded to groups of 32 codes as they are read; "
        "fp8: to 8-bit floats (E4M3) with a scale for each output feature, which the triton kernels multiply with activations of 8 bits",
    )
    device: Literal["auto", "cpu", "cuda"] = _setting("auto", "where the model runs")
    kernels: Literal["auto", "reference", "cpu", "triton"] = _setting("auto", "the set of kernels; auto: cpu or triton, by the device")
    deterministic: bool = _setting(
        False,
        "tokens do not depend on the load, on CUDA too: matrix products by Triton in place of cuBLAS, at some cost; always so on the CPU",
    )
    num_threads: int | None = _setting(None, "CPU threads that compute; none: all cores, or the container's share")
    enforce_eager: bool = _setting(False, "run operation by operation: no recorded plan, no CUDA graphs")

    max_model_len: int | None = _setting(None, "longest prompt plus output, in tokens; none: the model's own context length")
    max_num_seqs: int | None = _setting(None, "sequences that may run at once; none: 256, but at most half of the tokens of a step")
    max_num_batched_tokens: int | None = _setting(None, "tokens that one step may compute; none: 256 on the CPU, 8192 on CUDA")

    max_waiting_requests: int | None = _setting(
        1024, "requests that may wait for their first token; more are refused, the server answers 429; none: no bound"
    )
    max_waiting_tokens: int | None = _setting(None, "prompt tokens that waiting requests may have together; none: no bound")

    max_num_partial_prefills: int = _setting(
        1, "prompts that may be partly computed at once; of more, those behind wait for a whole step's room"
    )
    long_prefill_token_threshold: int = _setting(
        0, "most tokens of one prompt in one step, so that short prompts behind a long one need not wait for it; 0: no such limit"
    )

    async_scheduling: bool | None = _setting(
        None, "schedule a step while the one before it runs; none: on CUDA, but not on the CPU (docs/decisions/overlap.md)"
    )

    scheduling_policy: Literal["priority", "fcfs", "fair"] = _setting(
        "priority",
        "who starts first; priority: lower `priority`, then arrival; fcfs: arrival; fair: tenants (`user`, or the API key) take turns",
    )
    max_overtakings: int = _setting(100, "starts of other sequences in a row after which the one that has waited longest is next")

    pooling: Literal["auto", "mean", "last"] = _setting(
        "auto", "embeddings: mean of the hidden states of all tokens, or that of the last token; auto: as the model says, else mean"
    )

    block_size: int = _setting(16, "tokens in one KV block; a power of two")
    gpu_memory_utilization: float = _setting(0.9, "share of the GPU's memory for weights, activations and KV cache")
    kv_cache_memory: int | None = _setting(
        None,
        "bytes of KV cache (suffixes K, M, G); none: on the CPU an eighth of the machine's memory or the container's, "
        "4 GiB at most, on CUDA what is free",
    )
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"] = _setting(
        "auto",
        "type of the KV cache; auto: dtype; int8: codes with a scale for each token and head, half of float16; "
        "fp8: 8-bit floats (E4M3), half the memory, for the triton kernels",
    )
    num_gpu_blocks_override: int | None = _setting(None, "exact number of KV blocks, for tests")
    enable_prefix_caching: bool = _setting(True, "keep the KV of finished sequences for prompts that begin alike")
    swap_space: int | None = _setting(
        None,
        "bytes of host memory behind the KV cache (suffixes K, M, G), for preempted sequences and for cached blocks that are evicted; "
        "none: 4 GiB on CUDA, an eighth of the memory at most, and 0 on the CPU, where a larger KV cache makes more of the same bytes",
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = _setting(
        "auto",
        "what becomes of a sequence when KV blocks run out; swap: its KV waits in swap_space, as long as there is room; "
        "recompute: it is computed again; auto: whichever is estimated to cost less",
    )

    tool_call_parser: Literal["auto", "hermes", "llama3_json", "pythonic", "mistral", "deepseek_v3", "granite", "phi4_mini"] = _setting(
        "auto", "how the model writes tool calls; auto: as its chat template shows, hermes if it does not"
    )
    reasoning_parser: Literal["auto", "none", "qwen3", "deepseek_r1", "granite", "mistral"] = _setting(
        "auto", "how the model marks its reasoning; auto: as its chat template shows; none: it is content"
    )

    profile_dir: str | None = _setting(None, "directory that profiles of the engine are written to (/start_profile); none: there are none")
    logits_processors: tuple[str, ...] = _setting(
        (), "name=package.module:factory that requests may call by its name; what it returns changes their logits; may be repeated"
    )

    step_timeout: float = _setting(
        300.0, "seconds in which an engine that has work must finish a step; one that does not hangs, and is killed and started again"
    )

    seed: int = _setting(0, "seeds dummy weights, and the draws of requests that bring no seed of their own when not 0")

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(EngineConfig).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(kind))}, but is {getattr(self, name)!r}")
        LogitsProcessorRegistry(self.logits_processors)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("max_waiting_requests", self.max_waiting_requests, 1)
        _at_least("max_waiting_tokens", self.max_waiting_tokens, 1)
        _at_least("max_num_partial_prefills", self.max_num_partial_prefills, 1)
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _at_least("max_overtakings", self.max_overtakings, 0)
        _at_least("max_model_len", self.max_model_len, 1)
        _at_least("num_threads", self.num_threads, 1)
        most_threads = 4 * (os.cpu_count() or 1)
        if self.num_threads is not None and self.num_threads > most_threads:
            raise ConfigError(f"num_threads must be at most {most_threads}, four for each core of this machine, but is {self.num_threads}")
        if self.model is not None and not self.model.strip():
            raise ConfigError("model must not be empty: leave it out for the default model")
        _at_least("kv_cache_memory", self.kv_cache_memory, 1)
        _at_least("swap_space", self.swap_space, 0)
        _at_least("num_gpu_blocks_override", self.num_gpu_blocks_override, 1)
        if not 0.0 < self.step_timeout < float("inf"):
            raise ConfigError(f"step_timeout must be a number of seconds above 0, but is {self.step_timeout}")
        if self.block_size < 1 or self.block_size & (self.block_size - 1) or self.block_size > 256:
            raise ConfigError(f"block_size must be a power of two up to 256, but is {self.block_size}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, but is {self.gpu_memory_utilization}")

    @property
    def token_budget(self) -> int:
        """Tokens of one step once the device is known."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return 8192 if self.device == "cuda" else 256

    @property
    def seq_budget(self) -> int:
        """Sequences that may run at once. Each is sure of its decode in every step, so there are never more than tokens in a step."""
        if self.max_num_seqs is not None:
            return min(self.max_num_seqs, self.token_budget)
        # Half: prompts make progress whatever decodes.
        return min(256, max(1, self.token_budget // 2))

    @property
    def overlaps_steps(self) -> bool:
        """Whether steps are scheduled while others run, once the device is known."""
        return self.device == "cuda" if self.async_scheduling is None else self.async_scheduling


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file, dashes in names taken as underscores. Raises ConfigError when the file cannot be read as such."""
    try:
        loaded = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_in_one_line(error)}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold `name: value` lines, but its top level is a {type(loaded).__name__}")
    return {str(name).replace("-", "_"): value for name, value in loaded.items()}


def _in_one_line(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem or error.context}"


def engine_setting_names() -> set[str]:
    return {f.name for f in dataclasses.fields(EngineConfig)}


def parse_bytes(text: str | int) -> int:
    """A number of bytes from `512M`, `4G`, `1.5GiB` or a plain count. Raises ConfigError for anything else."""
    if isinstance(text, int):
        return text
    stripped = text.strip().upper().removesuffix("B").removesuffix("I")
    factor = {"K": 1 << 10, "M": 1 << 20, "G": GIB, "T": 1 << 40}.get(stripped[-1:], 1)
    number = stripped[:-1] if factor > 1 else stripped
    try:
        return int(float(number) * factor)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{text!r} is no number of bytes: write for example 512M or 4G") from error


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{name} must be at least {least}, but is {value}")

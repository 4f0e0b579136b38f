"""Settings that keep an engine in a test small."""

from __future__ import annotations

from typing import Any

from engine.llm import LLM


def small_llm(**settings: Any) -> LLM:
    """An LLM with room for a few thousand tokens."""
    defaults: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 256, "max_num_seqs": 16}
    return LLM(**{**defaults, **settings})

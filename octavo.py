"""Octavo: an OpenAI-compatible async HTTP inference server for large language models.

from octavo import LLM, SamplingParams

llm = LLM()
print(llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLMEngine",
    "EmbeddingOutput",
    "EngineConfig",
    "PoolingParams",
    "RepetitionDetection",
    "RequestOutput",
    "SamplingParams",
]

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine
    from engine.config import EngineConfig
    from engine.llm import LLM
    from engine.outputs import EmbeddingOutput, RequestOutput
    from engine.pooling_params import PoolingParams
    from engine.sampling_params import RepetitionDetection, SamplingParams

_HOMES = {
    "LLM": "engine.llm",
    "AsyncLLMEngine": "engine.async_engine",
    "EmbeddingOutput": "engine.outputs",
    "EngineConfig": "engine.config",
    "PoolingParams": "engine.pooling_params",
    "RepetitionDetection": "engine.sampling_params",
    "RequestOutput": "engine.outputs",
    "SamplingParams": "engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `octavo --help` and the API process do not pay for importing PyTorch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")

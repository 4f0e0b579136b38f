"""Short ways to make requests of an AsyncLLMEngine, and to read what comes back."""

from __future__ import annotations

from typing import Any

from engine.async_engine import AsyncLLMEngine
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams

SETTINGS: dict[str, Any] = {"max_model_len": 512, "num_gpu_blocks_override": 256, "max_num_seqs": 32}


def submit(engine: AsyncLLMEngine, name: str, prompt: str = "Once upon a time", **params: Any) -> RequestStream:
    settings = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **params}
    return engine.generate(engine.tokenizer.encode(prompt), SamplingParams(**settings), name)


async def read(stream: RequestStream) -> tuple[str, list[int]]:
    text, token_ids = "", []
    async for output in stream:
        text += output.outputs[0].text
        token_ids += output.outputs[0].token_ids
    return text, token_ids


async def settled(engine: AsyncLLMEngine) -> None:
    """Returns when the engine has heard of everything sent so far."""
    await engine.check()
    await engine.check()

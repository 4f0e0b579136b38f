"""One forward pass over whole prompts, as the engine's parts do it, for comparing logits."""

from __future__ import annotations

import torch

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.cache_engine import CacheEngine
from engine.loader.model_source import ModelSource
from engine.models import build_model
from engine.sampling_params import SamplingParams
from engine.step import NewSequence, StepInput
from kernels.ops import load_ops

BLOCK_SIZE = 16


class Forward:
    """A source's model with dequantised float32 weights."""

    def __init__(self, source: ModelSource, kernels: str, max_model_len: int = 512) -> None:
        self.config = source.config()
        self.ops = load_ops(kernels, torch.device("cpu"), torch.float32)
        self.model = build_model(self.config, max_model_len, torch.device("cpu"))
        self.model.parameters.load(source.weights(), self.ops, quantization="none")
        self.max_model_len = max_model_len

    @torch.inference_mode()
    def logits(self, prompts: list[list[int]]) -> list[torch.Tensor]:
        """[len(prompt), vocab_size] for each prompt, all computed in one flat batch."""
        num_tokens = sum(map(len, prompts))
        blocks_each = -(-self.max_model_len // BLOCK_SIZE)
        cache = CacheEngine(self.model.attention_shapes, len(prompts) * blocks_each, BLOCK_SIZE, torch.float32, self.ops)
        tables = SlotTables(len(prompts), self.max_model_len, BLOCK_SIZE)
        for slot, prompt in enumerate(prompts):
            blocks = list(range(slot * blocks_each, (slot + 1) * blocks_each))
            tables.admit(NewSequence(slot, prompt, len(prompt), SamplingParams(), 0, 0, blocks, 0))
        step = StepInput([], [], [], list(range(len(prompts))), [0] * len(prompts), [len(p) for p in prompts], [False] * len(prompts))
        buffers = BatchBuffers(num_tokens, len(prompts), blocks_each, BLOCK_SIZE, self.ops.device)
        arrays = StepArrays.of(step)
        batch = buffers.fill(tables, arrays, prompt_rows=torch.arange(num_tokens).numpy())
        logits = self.model.forward(self.ops, batch, cache.kv_caches)
        return list(logits.float().split([len(p) for p in prompts]))

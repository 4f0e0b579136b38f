"""What quantised arithmetic costs in quality: `python -m loadtest.quality FILE... [--positions 5120]`.

The default model with its weights as stored (and activations of 8 bits) against the float32 reference on the same weights dequantised, on
ordinary text: mean Kullback-Leibler divergence of the next token's distribution, how often both have the same most probable token, and
both perplexities. The text is cut into stretches of 512 tokens.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.cache_engine import CacheEngine
from engine.loader.source import ModelSource, resolve_model
from engine.models import build_model
from engine.sampling_params import SamplingParams
from engine.step import NewSequence, StepInput
from kernels.ops import load_ops

STRETCH = 512
BLOCK_SIZE = 16
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--positions", type=int, default=5120)
    args = parser.parse_args()
    source = resolve_model(None)
    text = "".join(path.read_text() for path in args.files)
    token_ids = source.tokenizer().encode(text)[: args.positions]
    sides = [Side(source, "cpu", dequantize=False), Side(source, "reference", dequantize=True)]
    divergence, same, losses, count = 0.0, 0, [0.0, 0.0], 0
    for start in range(0, len(token_ids), STRETCH):
        stretch = token_ids[start : start + STRETCH]
        ours, reference = (side.logprobs(stretch) for side in sides)
        divergence += float((reference.exp() * (reference - ours)).sum())
        same += int((ours.argmax(-1) == reference.argmax(-1)).sum())
        following = torch.tensor(stretch[1:])[:, None]
        for i, logprobs in enumerate((ours, reference)):
            losses[i] -= float(logprobs[:-1].gather(1, following).sum())
        count += len(stretch)
    predicted = count - -(-count // STRETCH)
    perplexities = [math.exp(loss / predicted) for loss in losses]
    print(f"{count} positions: mean KL {divergence / count:.4f} nats, same top token {100 * same / count:.1f}%")
    print(f"perplexity {perplexities[0]:.3f} against {perplexities[1]:.3f} ({100 * (perplexities[0] / perplexities[1] - 1):+.2f}%)")


class Side:
    """The model on one set of kernels."""

    def __init__(self, source: ModelSource, kernels: str, dequantize: bool) -> None:
        self._ops = load_ops(kernels, CPU, torch.float32)
        self._model = build_model(source.config(), STRETCH, CPU)
        self._model.parameters.load(source.weights(), self._ops, dequantize=dequantize)
        num_blocks = STRETCH // BLOCK_SIZE
        self._cache = CacheEngine(self._model.attention_shapes, num_blocks, BLOCK_SIZE, torch.float32, self._ops)
        self._tables = SlotTables(1, STRETCH, BLOCK_SIZE)
        self._buffers = BatchBuffers(STRETCH, 1, num_blocks, BLOCK_SIZE, CPU)

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab_size] float64, of the token after each."""
        blocks = list(range(STRETCH // BLOCK_SIZE))
        self._tables.admit(NewSequence(0, token_ids, len(token_ids), SamplingParams(), 0, 0, blocks, 0))
        arrays = StepArrays.of(StepInput([], [], [], [0], [0], [len(token_ids)], [False]))
        batch = self._buffers.fill(self._tables, arrays, prompt_rows=np.arange(len(token_ids)))
        return self._model.forward(self._ops, batch, self._cache.kv_caches).double().log_softmax(-1)


if __name__ == "__main__":
    main()

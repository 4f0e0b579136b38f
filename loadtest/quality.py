"""What quantised arithmetic costs in quality: `python -m loadtest.quality FILE... [--quantization int8] [--kv-cache-dtype float16]`.

The model with the settings in question against the float32 reference on the same weights dequantised, on ordinary text: mean
Kullback-Leibler divergence of the next token's distribution, how often both have the same most probable token, and both perplexities. The
text is cut into stretches of 512 tokens. Without settings: weights as stored, activations as served, KV in float32. For int8 and int4 the
weights of a quantised checkpoint, the default one's too, are first dequantised; --rescale then moves them off the grid that they came
from, by giving each input feature a random factor that the norm in front takes back: the model computes the same function, and rounding
cannot be spared.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.cache_engine import CacheEngine
from engine.loader.model_source import ModelSource
from engine.loader.resolve import resolve_model
from engine.models import build_model
from engine.sampling_params import SamplingParams
from engine.step import NewSequence, StepInput
from kernels.ops import load_ops
from kernels.weights import DenseWeight, Weight

STRETCH = 512
BLOCK_SIZE = 16
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--positions", type=int, default=5120)
    parser.add_argument("--model")
    parser.add_argument("--quantization", choices=["auto", "none", "int8", "int4"], default="auto")
    parser.add_argument("--kv-cache-dtype", default="float32")
    parser.add_argument("--rescale", action="store_true")
    args = parser.parse_args()
    source = resolve_model(args.model)
    text = "".join(path.read_text() for path in args.files)
    token_ids = source.tokenizer().encode(text)[: args.positions]
    weights = (
        {name: as_floats(weight) for name, weight in source.weights()} if args.quantization.startswith("int") else dict(source.weights())
    )
    if args.rescale:
        rescale(weights)
    sides = [Side(source, weights, "cpu", args.quantization, args.kv_cache_dtype), Side(source, weights, "reference", "none", "float32")]
    del weights
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

    def __init__(self, source: ModelSource, weights: Weights, kernels: str, quantization: str, kv_cache_dtype: str) -> None:
        self._ops = load_ops(kernels, CPU, torch.float32)
        self._model = build_model(source.config(), STRETCH, CPU)
        self._model.parameters.load(weights.items(), self._ops, quantization)
        num_blocks = STRETCH // BLOCK_SIZE
        kv_dtype = getattr(torch, kv_cache_dtype)
        self._cache = CacheEngine(self._model.attention_shapes, num_blocks, BLOCK_SIZE, kv_dtype, self._ops)
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


Weights = dict[str, "Weight | torch.Tensor"]


def as_floats(weight: Weight | torch.Tensor) -> Weight | torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else DenseWeight(weight.dequantize())


READERS = {
    "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}


def rescale(weights: Weights) -> None:
    """Multiply the norms of all layers by random factors, and divide the columns of what reads their results by them."""
    generator = torch.Generator().manual_seed(0)
    for name in list(weights):
        norm = name.split(".")[-2]
        if norm not in READERS:
            continue
        factors = torch.exp(torch.randn(weights[name].shape, generator=generator) * 0.2)
        weights[name] = weights[name] * factors
        for reader in READERS[norm]:
            matrix = name.replace(norm, reader)
            weights[matrix] = DenseWeight(weights[matrix].dequantize() / factors)


if __name__ == "__main__":
    main()

"""Random weights of a model's shapes, for measuring speed without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

    from engine.loader.model_source import ModelSource, Progress
    from engine.tokenizer import Tokenizer
    from kernels.weights import Weight

STANDARD_DEVIATION = 0.02
# A prime, so that the rows of no matrix repeat: drawing billions of numbers would take minutes.
_NUM_DRAWS = 4_194_301


class DummySource:
    """A ModelSource that takes everything but the weights from another one, and never opens a file of weights."""

    def __init__(self, source: ModelSource, seed: int = 0) -> None:
        self.name = source.name
        self.path = source.path
        self._source = source
        self._seed = seed

    def config(self) -> ModelConfig:
        return self._source.config()

    def tokenizer(self) -> Tokenizer:
        return self._source.tokenizer()

    def chat_template(self) -> str | None:
        return self._source.chat_template()

    def generation_defaults(self) -> dict[str, Any]:
        return self._source.generation_defaults()

    def weights(self, progress: Progress | None = None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
        return random_weights(self.config(), self._seed, progress)

    def fingerprint(self) -> str:
        return f"dummy-{self._seed}"


def random_weights(config: ModelConfig, seed: int, progress: Progress | None = None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
    """Matrices of small normal numbers in the checkpoint's type, norms of ones, biases of zeros: the same for one seed."""
    import torch

    from kernels.weights import DenseWeight

    dtype = getattr(torch, config.dtype)
    draws = torch.randn(_NUM_DRAWS, generator=torch.Generator().manual_seed(seed)).mul_(STANDARD_DEVIATION).to(dtype)
    shapes = weight_shapes(config)
    total = sum(_num_bytes(shape, dtype.itemsize) for shape in shapes.values())
    done = 0
    for name, shape in shapes.items():
        if len(shape) == 2:
            # Every matrix starts elsewhere in the draws, so that no two are equal.
            yield name, DenseWeight(_cycled(draws, start=done % _NUM_DRAWS, count=shape[0] * shape[1]).view(shape))
        else:
            yield name, torch.zeros(shape, dtype=dtype) if name.endswith(".bias") else torch.ones(shape, dtype=dtype)
        done += _num_bytes(shape, dtype.itemsize)
        if progress is not None:
            progress(done, total)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """All weights of a Llama-like model by Hugging Face's names; matrices are (out_features, in_features)."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        _add_linear(shapes, f"{layer}.self_attn.q_proj", (q_size, hidden), config.attention_bias)
        _add_linear(shapes, f"{layer}.self_attn.k_proj", (kv_size, hidden), config.attention_bias)
        _add_linear(shapes, f"{layer}.self_attn.v_proj", (kv_size, hidden), config.attention_bias)
        _add_linear(shapes, f"{layer}.self_attn.o_proj", (hidden, q_size), config.attention_output_bias)
        if config.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (config.head_size,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        _add_linear(shapes, f"{layer}.mlp.gate_proj", (intermediate, hidden), config.mlp_bias)
        _add_linear(shapes, f"{layer}.mlp.up_proj", (intermediate, hidden), config.mlp_bias)
        _add_linear(shapes, f"{layer}.mlp.down_proj", (hidden, intermediate), config.mlp_bias)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _add_linear(shapes: dict[str, tuple[int, ...]], name: str, shape: tuple[int, int], bias: bool) -> None:
    shapes[f"{name}.weight"] = shape
    if bias:
        shapes[f"{name}.bias"] = shape[:1]


def _num_bytes(shape: tuple[int, ...], item_size: int) -> int:
    count = item_size
    for dimension in shape:
        count *= dimension
    return count


def _cycled(draws: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """`count` numbers from position `start` of the endlessly repeated draws."""
    out = draws.new_empty(count)
    head = min(count, draws.numel() - start)
    out[:head] = draws[start : start + head]
    for filled in range(head, count, draws.numel()):
        size = min(draws.numel(), count - filled)
        out[filled : filled + size] = draws[:size]
    return out

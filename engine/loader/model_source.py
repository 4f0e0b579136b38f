"""What a source of a model is: it answers questions about the model without reading its weights, and gives the weights.

The questions need neither PyTorch nor transformers: the API process asks for the tokenizer and the chat template and must start at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

    from engine.tokenizer import Tokenizer
    from kernels.weights import Weight

# Called with (bytes done, bytes in total).
Progress: TypeAlias = Callable[[int, int], None]


class ModelSource(Protocol):
    """One model on disk. Every method raises ModelLoadError when what it needs is missing or damaged."""

    name: str  # as the user gave it
    path: Path  # the file or directory

    def config(self) -> ModelConfig: ...

    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> str | None:
        """The Jinja template that renders messages, if the model has one."""
        ...

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling settings that the model's authors recommend, under the names of SamplingParams."""
        ...

    def weights(self, progress: Progress | None = None) -> Iterator[tuple[str, Weight | torch.Tensor]]:
        """All weights under Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`): matrices as Weight, vectors as tensors."""
        ...

    def fingerprint(self) -> str:
        """Names these weights, told apart from others by their size, their header and samples of the data: cheap at any size."""
        ...

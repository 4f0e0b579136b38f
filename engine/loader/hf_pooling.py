"""How a checkpoint of sentence-transformers makes embeddings: modules.json and the settings of its pooling module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.loader.json_file import read_json, read_json_as
from engine.pooling_params import Pooling

_KINDS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_HARMLESS = ("Transformer", "Pooling", "Normalize")  # embeddings are always brought to length 1, unless a request says otherwise


def read_pooling(directory: Path) -> Pooling | None:
    """The pooling that the model in `directory` was trained with; None for a model that was not trained for embeddings.

    Raises ModelLoadError where its embeddings would need what is not implemented, as they would be wrong without it.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return None
    pooling: Pooling | None = None
    for module in read_json_as(list, path):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind not in _HARMLESS:
            raise ModelLoadError(f"{path}: embeddings that pass through a module of type {kind or '?'} are not supported")
        if kind == "Pooling":
            pooling = _read_kind(directory / _inside(path, module.get("path")) / "config.json")
    return pooling


def _read_kind(path: Path) -> Pooling:
    modes = [name for name, value in read_json(path).items() if name.startswith("pooling_mode") and value is True]
    if len(modes) != 1 or modes[0] not in _KINDS:
        raise ModelLoadError(f"{path}: pooling by {', '.join(modes) or 'no mode'} is not supported; supported are {', '.join(_KINDS)}")
    return _KINDS[modes[0]]


def _inside(path: Path, name: Any) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise ModelLoadError(f"{path} names {name!r}, which is not a folder of its own directory")
    return name

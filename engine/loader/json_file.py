"""Reads the JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelLoadError when it cannot be read or is something else."""
    loaded: dict[str, Any] = read_json_as(dict, path)
    return loaded


def read_json_as(kind: type[dict[str, Any]] | type[list[Any]], path: Path) -> Any:
    """The same for a file that holds an object (dict) or an array (list)."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(loaded, kind):
        wanted = "array" if kind is list else "object"
        raise ModelLoadError(f"{path} must hold a JSON {wanted}, but holds a {type(loaded).__name__}")
    return loaded

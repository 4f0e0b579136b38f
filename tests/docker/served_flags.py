"""What `octavo serve` makes of the flags in a compose file, a manifest or a Dockerfile."""

from __future__ import annotations

from pathlib import Path

import typer.main

from engine.config import EngineConfig
from server.cli import app
from server.config import ServerConfig
from server.settings import load_configs

ROOT = Path(__file__).parents[2]


def configs(arguments: list[str], files: dict[str, Path]) -> tuple[EngineConfig, ServerConfig]:
    """The settings that arguments behind `octavo serve` come to. `files`: where those are that they name within the container.

    Raises click's and ConfigError's errors for flags that do not exist and values that cannot be.
    """
    here = [f"{name}={files.get(value, value)}" if value else name for name, _, value in (word.partition("=") for word in arguments)]
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    given = serve.make_context("serve", here).params
    settings_file = given.pop("config")
    model = given.pop("model_argument")
    flags = {name: value for name, value in given.items() if value not in (None, [], ())}
    return load_configs(flags | ({} if model is None else {"model": model}), settings_file)

"""Every field of EngineConfig and ServerConfig as a setting: a flag, a line of a YAML file, or its default, in that order."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from engine.config import EngineConfig, parse_bytes, read_settings
from engine.errors import ConfigError
from server.config import ServerConfig

_SIZES = frozenset({"kv_cache_memory", "swap_space", "max_body_size", "max_header_size", "max_batch_file_size", "max_batch_storage"})


@dataclass(frozen=True)
class Setting:
    """One field of a config dataclass."""

    name: str
    kind: type  # bool, int, float, str, or tuple for several strings
    choices: tuple[str, ...]  # the legal strings; empty: any
    optional: bool  # None is a legal value
    default: Any
    help: str
    owner: type  # EngineConfig or ServerConfig
    envvar: str | None = None

    @property
    def is_size(self) -> bool:
        """A number of bytes, which may be written as 512M."""
        return self.name in _SIZES


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting by its name, the server's first."""
    found: dict[str, Setting] = {}
    for owner in (ServerConfig, EngineConfig):
        hints = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            kind, choices, optional = _unfold(hints[field.name])
            meta = field.metadata
            found[field.name] = Setting(field.name, kind, choices, optional, field.default, meta.get("help", ""), owner, meta.get("envvar"))
    return found


def load_configs(flags: Mapping[str, Any], settings_file: str | Path | None = None) -> tuple[EngineConfig, ServerConfig]:
    """The two configs from given flags over a YAML file over the defaults. Raises ConfigError with one sentence that says what to do."""
    values: dict[str, Any] = {}
    if settings_file is not None:
        for name, value in read_settings(settings_file).items():
            values[name] = coerce(_setting_named(name, settings_file), value, f"{name} in {settings_file}")
    for name, value in flags.items():
        values[name] = coerce(all_settings()[name], value, "--" + name.replace("_", "-"))
    engine = {name: value for name, value in values.items() if all_settings()[name].owner is EngineConfig}
    server = {name: value for name, value in values.items() if all_settings()[name].owner is ServerConfig}
    return EngineConfig(**engine), ServerConfig(**server)


def coerce(setting: Setting, value: Any, where: str) -> Any:
    """The value in the setting's own type. Raises ConfigError, naming `where` it came from, when it has none there."""
    if value is None and setting.optional:
        return None
    if setting.is_size and isinstance(value, str):
        return parse_bytes(value)
    if setting.kind is tuple:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list | tuple) and all(isinstance(item, str) for item in values):
            return tuple(values)
        raise ConfigError(f"{where} must be a string or a list of strings, but is {value!r}")
    if setting.kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if setting.kind is str and isinstance(value, int | float) and not isinstance(value, bool) and not setting.choices:
        return str(value)  # YAML reads a revision or a key made of digits as a number
    if not isinstance(value, setting.kind) or (setting.kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be {_describe(setting)}, but is {value!r}")
    if setting.choices and str(value) not in setting.choices:
        raise ConfigError(f"{where} must be {_describe(setting)}, but is {value!r}{_nearest(str(value), setting.choices)}")
    return value


def _setting_named(name: str, settings_file: str | Path) -> Setting:
    try:
        return all_settings()[name]
    except KeyError:
        raise ConfigError(f"{settings_file} sets {name!r}, which is no setting{_nearest(name, all_settings())}") from None


def _nearest(name: str, names: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else ""


def _describe(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    if setting.is_size:
        return "a number of bytes such as 512M"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}[setting.kind]


def _unfold(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """(kind, choices, optional) of a field's annotation."""
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        optional, hint = len(arms) < len(typing.get_args(hint)), arms[0]
    if typing.get_origin(hint) is Literal:
        return str, typing.get_args(hint), optional
    if typing.get_origin(hint) is tuple:
        return tuple, (), optional
    return hint, (), optional

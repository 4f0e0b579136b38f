"""Logits processors that requests call by name: the operator's own code, named on the command line and nowhere else."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from engine.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    import torch

# (generated token ids, logits [vocab_size]) -> logits [vocab_size], in place or not
LogitsProcessor: TypeAlias = "Callable[[list[int], torch.Tensor], torch.Tensor]"

MAX_PER_REQUEST = 8

_SPEC = re.compile(r"([\w.-]+)=([\w.]+):(\w+)", re.ASCII)


class NamedLogitsProcessor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A processor as a request asks for it."""

    name: str
    kwargs: dict[str, Any] = {}


class LogitsProcessorRegistry:
    """Each name's factory: called with a request's keywords it returns a LogitsProcessor, for that sequence alone.

    Nothing is imported before `load`, so that a process which only needs the names stays light.
    """

    def __init__(self, specs: Iterable[str]) -> None:
        """`specs`: name=module:factory. Raises ConfigError for one that is none, and for a name that is given twice."""
        self._places: dict[str, tuple[str, str]] = {}
        self._factories: dict[str, Callable[..., LogitsProcessor]] = {}
        for spec in specs:
            if not (found := _SPEC.fullmatch(spec)):
                raise ConfigError(f"logits_processors must be written name=package.module:factory, but one is {spec!r}")
            name, module, factory = found.groups()
            if name in self._places:
                raise ConfigError(f"logits_processors has two of the name {name!r}")
            self._places[name] = (module, factory)

    def load(self) -> None:
        """Import every factory. Raises ConfigError when one cannot be."""
        for name, (module, factory) in self._places.items():
            try:
                found = getattr(importlib.import_module(module), factory)
            except Exception as error:  # whatever the module's own code raises
                hint = ": its directory must be in PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
                raise ConfigError(f"cannot import the logits processor {name} from {module}: {error}{hint}") from error
            if not callable(found):
                raise ConfigError(f"the logits processor {name} must be a function that makes one, but {module}:{factory} is no function")
            self._factories[name] = found

    def check(self, wanted: Iterable[NamedLogitsProcessor]) -> None:
        """Raises InvalidRequestError for a name that is not known here."""
        for one in wanted:
            if one.name not in self._places:
                known = ", ".join(self._places) or "none: the server must be started with --logits-processors"
                raise InvalidRequestError(f"there is no logits processor {one.name[:100]!r}; there are {known}", param="logits_processors")

    def make(self, wanted: NamedLogitsProcessor) -> LogitsProcessor:
        """A new processor. Raises what the factory raises, for example TypeError for keywords that it does not take."""
        return self._factories[wanted.name](**wanted.kwargs)

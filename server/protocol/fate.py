"""What may become of a request parameter, and the sorting of a body's parameters by it. The tables are in fates.py and beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from server.errors import ApiError
from server.observability.logs import logger


class Fate(Enum):
    """What becomes of a parameter."""

    IMPLEMENTED = "implemented"
    ACCEPTED = "accepted, no effect here"
    REFUSED = "refused"


@dataclass(frozen=True)
class Parameter:
    """One parameter of one endpoint. null always means the same as leaving it out."""

    name: str
    fate: Fate
    note: str
    neutral: tuple[Any, ...] = ()  # for REFUSED: the values that ask for nothing, and are accepted
    extra: bool = False  # not OpenAI's: taught by other self-hosted servers
    code: str = "unsupported_parameter"  # for REFUSED: of the error

    def accepts(self, value: Any) -> bool:
        """Whether a refused parameter's value asks for nothing."""
        return any(type(value) in (type(one), int, float) and value == one for one in self.neutral)


def sort_parameters(body: dict[str, Any], table: dict[str, Parameter], allow_unknown: bool) -> dict[str, Any]:
    """The implemented parameters of a body.

    Raises ApiError (400) for a refused one whose value asks for something, and for unknown ones unless they are allowed.
    """
    kept: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in body.items():
        parameter = table.get(name)
        if parameter is None:
            unknown.append(name)
        elif value is None or parameter.fate is Fate.ACCEPTED:
            continue
        elif parameter.fate is Fate.IMPLEMENTED:
            kept[name] = value
        elif not parameter.accepts(value):
            raise ApiError(400, f"{name} is not supported here: {parameter.note}", param=name, code=parameter.code)
    if unknown and not allow_unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:10])
        raise ApiError(400, f"unknown parameter: {names}", param=unknown[0][:100], code="unknown_parameter")
    if unknown:
        logger.warning("unknown parameters were ignored: %s", ", ".join(repr(name[:100]) for name in unknown[:10]))
    return kept


def implemented(name: str, note: str = "", extra: bool = False) -> Parameter:
    return Parameter(name, Fate.IMPLEMENTED, note, extra=extra)


def accepted(name: str, note: str, extra: bool = False) -> Parameter:
    return Parameter(name, Fate.ACCEPTED, note, extra=extra)


def refused(name: str, note: str, *neutral: Any, extra: bool = False) -> Parameter:
    return Parameter(name, Fate.REFUSED, note, neutral, extra=extra)


def by_name(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    table = {parameter.name: parameter for parameter in parameters}
    return dict(sorted(table.items(), key=lambda item: (item[1].extra, item[0])))

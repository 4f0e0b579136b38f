"""The functions that a request offers, and how far the model is free to call them."""

from __future__ import annotations

import json
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequestError
from engine.tool_calls.schema import find_fault

_COMBINED = ("allOf", "anyOf", "oneOf", "$ref", "if", "not", "patternProperties", "unevaluatedProperties", "additionalProperties")


@dataclass(frozen=True)
class Tool:
    """One function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # the JSON schema of its arguments; None: it has none
    strict: bool = False  # arguments must fit the schema, whether or not a call is required

    def shown(self) -> dict[str, Any]:
        """What templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters if self.parameters is not None else {"type": "object", "properties": {}}
        return {"type": "function", "function": function}

    def schema(self) -> dict[str, Any]:
        """The schema that arguments are generated under: no properties but those that it names, where it does not speak of others."""
        schema = {"type": "object", **(self.parameters or {"properties": {}})}
        closed: dict[str, Any] = _closed(schema)
        if '"allOf"' not in json.dumps(schema):  # which may put several definitions together, each with some of the properties
            for name in ("$defs", "definitions"):
                if isinstance(schema.get(name), dict):
                    closed[name] = {key: _closed(value) for key, value in schema[name].items()}
        return closed


@dataclass(frozen=True)
class ToolUse:
    """What an answer may call."""

    tools: tuple[Tool, ...]  # those that may be called, and no others
    required: bool = False  # the answer is a call
    only_one: bool = False  # no more than one call
    restricted: bool = False  # there are others, which must not be called

    @property
    def is_constrained(self) -> bool:
        """Whether calls are generated under a grammar."""
        return self.required or self.restricted or any(tool.strict for tool in self.tools)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


def read_tools(tools: SequenceOf[dict[str, Any]], choice: str) -> ToolUse | None:
    """Tools in OpenAI's form, and which of them are wanted: none, auto, required, or one by its name.

    Raises InvalidRequestError for what is no function, and for an unknown name.
    """
    known: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise InvalidRequestError(f'tools[{index}] must be {{"type": "function", "function": {{"name": ...}}}}', param="tools")
        parameters = function.get("parameters")
        fault = None if parameters is None else find_fault(parameters)
        if fault is not None or name in known:
            raise InvalidRequestError(f"tools[{index}]: {fault or f'there are two functions of the name {name!r}'}", param="tools")
        known[name] = Tool(name, function.get("description"), parameters, function.get("strict") is True)
    if choice not in ("none", "auto", "required") and choice not in known:
        raise InvalidRequestError(f"tool_choice must be none, auto, required or the name of a tool, but is {choice!r}", param="tool_choice")
    if not known or choice == "none":
        return None
    if choice in known:
        return ToolUse((known[choice],), required=True, only_one=True)
    return ToolUse(tuple(known.values()), required=choice == "required")


def _closed(schema: Any) -> Any:
    """JSON Schema allows any further property where it does not say otherwise, and a small model does not find an end of them."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    if isinstance(schema.get("properties"), dict):
        closed["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        if not any(name in schema for name in _COMBINED):
            closed["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        closed["items"] = _closed(schema["items"])
    return closed

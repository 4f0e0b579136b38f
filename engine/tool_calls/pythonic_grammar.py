"""Calls as Python expressions, `name(argument=value, ...)`, in Lark: arguments in the schema's order, their values in JSON."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidRequestError
from engine.tool_calls.structure import json_rule, quoted
from engine.tool_calls.tools import Tool

# Beside the properties, an object that is written as arguments can heed nothing but these.
_HEEDED = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description", "$schema"}


def call_expression(tool: Tool) -> str:
    """The body of a rule. Raises InvalidRequestError for a schema that says more than which properties there are."""
    schema = tool.schema()
    if unheeded := schema.keys() - _HEEDED:
        message = f"the parameters of {tool.name!r} cannot be enforced in this model's way to call functions: {min(unheeded)}"
        raise InvalidRequestError(message, param="tools", code="unsupported_schema")
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    items = [
        (f"{quoted(f'{name}=')} {json_rule(_with(value, shared))}", name in schema.get("required", ()))
        for name, value in schema.get("properties", {}).items()
    ]
    return f"{quoted(f'{tool.name}(')} {_arguments(items, is_first=True)} {quoted(')')}"


def _arguments(items: list[tuple[str, bool]], is_first: bool) -> str:
    """What may follow: each item with whether it must be there."""
    if not items:
        return ""
    (item, is_required), rest = items[0], items[1:]
    chosen = f"{'' if is_first else quoted(', ')} {item} {_arguments(rest, is_first=False)}"
    if is_required:
        return chosen
    left_out = _arguments(rest, is_first)
    return f"({chosen} | {left_out})" if left_out else f"({chosen})?"


def _with(schema: Any, shared: dict[str, Any]) -> Any:
    return {**shared, **schema} if isinstance(schema, dict) else schema

"""A first look at the JSON schema of a function's arguments, which finds what is plainly none.

What a grammar cannot enforce is found where the grammar is made, and only if one is needed.
"""

from __future__ import annotations

from typing import Any

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties")  # objects whose values are schemas
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # lists of schemas
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_MAX_DEPTH = 64


def find_fault(parameters: dict[str, Any]) -> str | None:
    """What is wrong with a function's parameters, in words; None when nothing is."""
    if parameters.get("type", "object") != "object":
        return f"its type is {str(parameters['type'])[:50]!r}, but arguments are an object"
    return _fault(parameters, "", 1)


def _fault(schema: Any, where: str, depth: int) -> str | None:
    if isinstance(schema, bool):
        return None
    place = f"{where or 'it'}"
    if not isinstance(schema, dict):
        return f"{place} must be an object or a boolean"
    if depth > _MAX_DEPTH:
        return f"it is nested more than {_MAX_DEPTH} deep"
    types = schema.get("type", [])
    for name in types if isinstance(types, list) else [types]:
        if not isinstance(name, str) or name not in _TYPES:
            return f"{place} has the type {str(name)[:50]!r}, which there is not"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return f"{where}required must be a list of names"
    if not isinstance(schema.get("enum", []), list):
        return f"{where}enum must be a list"
    return next((fault for name, child in _children(schema) if (fault := _child_fault(name, child, where, depth)) is not None), None)


def _children(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, schema[name]) for name in (*_BY_NAME, *_LISTS, *_SINGLE) if name in schema]


def _child_fault(name: str, child: Any, where: str, depth: int) -> str | None:
    place = f"{where}{name}"[-200:]
    if name in _BY_NAME:
        if not isinstance(child, dict):
            return f"{place} must be an object"
        schemas = child.items()
    elif name in _LISTS or isinstance(child, list):
        if not isinstance(child, list):
            return f"{place} must be a list"
        schemas = {str(index): one for index, one in enumerate(child)}.items()
    else:
        return _fault(child, f"{place}.", depth + 1)
    faults = (_fault(one, f"{place}.{key}.", depth + 1) for key, one in schemas)
    return next((fault for fault in faults if fault is not None), None)

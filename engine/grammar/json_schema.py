"""What of JSON Schema is enforced. llguidance refuses most of what it cannot enforce; here is what it would be slow or wrong about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from engine.errors import InvalidRequestError
from engine.grammar.regex_size import MAX_REGEX_SIZE, regex_size

MAX_SCHEMA_LENGTH = 256 << 10  # characters
MAX_DEPTH = 64
MAX_VALUES = 20_000  # of any kind, at any depth
MAX_NAMES = 1000  # in one object: properties, definitions
MAX_CHOICES = 10_000  # values of one enum that are texts or numbers; MAX_NAMES of objects and lists
MAX_MULTIPLE = 10_000  # least common multiple of all multipleOf, without their decimal points
MAX_COUNT = 1_000_000  # minLength, maxItems and the like

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def read_schema(text: str) -> dict[str, Any]:
    """The schema, checked. Raises InvalidRequestError naming the first construct that is not enforced, or that would take too long."""
    _check(len(text) <= MAX_SCHEMA_LENGTH, f"it has {len(text)} characters, but at most {MAX_SCHEMA_LENGTH} are read")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not valid JSON: {error}") from error
    _check(isinstance(schema, dict), "it must be a JSON object")
    multiple, regexes, num_values = 1, 0, 0
    for place, value, depth in _values(schema):
        num_values += 1
        _check(depth <= MAX_DEPTH, f"it is nested more than {MAX_DEPTH} deep")
        _check(num_values <= MAX_VALUES, f"it holds more than {MAX_VALUES} values")
        if not isinstance(value, dict):
            continue
        _check(len(value) <= MAX_NAMES, f"{place or 'it'} has {len(value)} names, but at most {MAX_NAMES} are taken")
        _check_keywords(place, value)
        multiple = math.lcm(multiple, _multiple_of(value))
        _check(multiple <= MAX_MULTIPLE, f"{place}multipleOf: all of them together must divide {MAX_MULTIPLE} or less")
        regexes += sum(map(regex_size, _patterns(value)))
        _check(regexes <= MAX_REGEX_SIZE, f"{place}pattern is too large: with all repetitions at most {MAX_REGEX_SIZE} characters")
    return schema  # type: ignore[no-any-return]


def _values(schema: Any) -> Iterator[tuple[str, Any, int]]:
    """Every value with its place, as in properties.name., and its depth. Those of enum, const, default and examples are data."""
    stack: list[tuple[str, Any, int]] = [("", schema, 1)]
    while stack:
        place, value, depth = stack.pop()
        yield place, value, depth
        if isinstance(value, dict):
            stack += [(f"{place}{name}."[-200:], child, depth + 1) for name, child in value.items()]
        elif isinstance(value, list):
            stack += [(place, child, depth + 1) for child in value]


def _check_keywords(place: str, schema: dict[str, Any]) -> None:
    """What one object of the schema says. Names of properties are looked at as if they were keywords, which does no harm."""
    _check("x-guidance" not in schema, f"{place}x-guidance is not taken")
    for name in _COUNTS:
        count = schema.get(name)
        _check(not isinstance(count, int | float) or count <= MAX_COUNT, f"{place}{name} must be at most {MAX_COUNT}")
    choices = schema.get("enum")
    if isinstance(choices, list):
        most = MAX_NAMES if any(isinstance(choice, dict | list) for choice in choices) else MAX_CHOICES
        _check(len(choices) <= most, f"{place}enum holds {len(choices)} values, but at most {most} are taken")


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    pattern, properties = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(properties, dict):
        yield from properties


def _multiple_of(schema: dict[str, Any]) -> int:
    """multipleOf without its decimal point: a matcher has about as many states."""
    multiple = schema.get("multipleOf")
    if not isinstance(multiple, int | float) or isinstance(multiple, bool) or not 0 < multiple < math.inf:
        return 1  # llguidance has its own word on those
    digits = Decimal(str(multiple)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _check(holds: bool, reason: str) -> None:
    if not holds:
        raise _refusal(reason)


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the JSON schema cannot be enforced: {reason}", "structured_outputs", "unsupported_schema")

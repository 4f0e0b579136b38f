"""What of JSON Schema is enforced. llguidance refuses most of what it cannot enforce; here is what it would be slow or wrong about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from engine.errors import InvalidRequestError
from engine.grammar.patterns import UnsupportedPatternError, portable
from engine.grammar.regex_size import MAX_REGEX_SIZE, regex_size

MAX_SCHEMA_LENGTH = 256 << 10  # characters
MAX_DEPTH = 64
MAX_VALUES = 20_000  # of any kind, at any depth
MAX_NAMES = 500  # properties of one object, or its definitions
MAX_TEXT_LENGTH = 4096  # of one text that is to be written as it stands
MAX_CHOICES = 10_000  # values of one enum that are texts or numbers; MAX_NAMES of objects and lists
MAX_MULTIPLE = 10_000  # least common multiple of all multipleOf, without their decimal points
MAX_COUNT = 1_000_000  # minLength, maxItems and the like

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST = 2**53 - 1  # of I-JSON (RFC 7493, section 2.2), and of JavaScript
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SCHEMAS = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ANNOTATIONS = frozenset({"title", "description", "$comment", "default"})

_DATE = (  # of a year with four digits, and the days that each month has
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
# The library's own allow a leap second at any time of any day, which validators refuse.
_OWN_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}


class _Totals:
    """What has been counted of a schema so far."""

    def __init__(self) -> None:
        self.multiple = 1
        self.regexes = 0


def read_schema(text: str) -> dict[str, Any]:
    """The schema in llguidance's dialect. Raises InvalidRequestError naming the first construct that is not enforced, or is too large."""
    _check(len(text) <= MAX_SCHEMA_LENGTH, f"it has {len(text)} characters, but at most {MAX_SCHEMA_LENGTH} are read")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not valid JSON: {error}") from error
    _check(isinstance(schema, dict), "it must be a JSON object")
    _check_size(schema)
    totals = _Totals()
    stack: list[tuple[str, Any]] = [("", schema)]
    while stack:
        place, part = stack.pop()
        if isinstance(part, dict):
            _check_keywords(place, part, totals)
            stack += _parts(place, part)
    return schema  # type: ignore[no-any-return]


def _check_size(schema: Any) -> None:
    stack, num_values = [(schema, 1)], 0
    while stack:
        value, depth = stack.pop()
        num_values += 1
        _check(depth <= MAX_DEPTH, f"it is nested more than {MAX_DEPTH} deep")
        _check(num_values <= MAX_VALUES, f"it holds more than {MAX_VALUES} values")
        for literal in _texts(value):
            _check(len(literal) <= MAX_TEXT_LENGTH, f"it holds a text of {len(literal)} characters, but at most {MAX_TEXT_LENGTH}")
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack += [(child, depth + 1) for child in children]


def _texts(value: Any) -> list[str]:
    """The texts directly in a value that an answer may have to hold."""
    if isinstance(value, dict):
        return [*value, *(text for name, text in value.items() if isinstance(text, str) and name not in _ANNOTATIONS)]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _parts(place: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas within a schema, and where they are."""
    for name in _SCHEMAS:
        if name in schema:
            yield f"{place}{name}.", schema[name]
    for name in _LISTS_OF_SCHEMAS:
        if isinstance(schema.get(name), list):
            yield from ((f"{place}{name}.{i}.", part) for i, part in enumerate(schema[name]))
    for name in _NAMED_SCHEMAS:
        if isinstance(schema.get(name), dict):
            yield from ((f"{place}{name}.{key[:50]}.", part) for key, part in schema[name].items())


def _check_keywords(place: str, schema: dict[str, Any], totals: _Totals) -> None:
    """Check what one schema says itself, and put what llguidance reads otherwise in its words."""
    _check("x-guidance" not in schema, f"{place}x-guidance is not taken")
    for name in _COUNTS:
        count = schema.get(name)
        _check(not isinstance(count, int | float) or count <= MAX_COUNT, f"{place}{name} must be at most {MAX_COUNT}")
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        _check(not isinstance(schema.get(name), bool), f"{place}{name} must be a number, as it is since draft 6")
    for name in _NAMED_SCHEMAS:
        names = schema.get(name, ())
        _check(not isinstance(names, dict) or len(names) <= MAX_NAMES, f"{place}{name} holds more than {MAX_NAMES} names")
    choices = schema.get("enum")
    if isinstance(choices, list):
        most = MAX_NAMES if any(isinstance(choice, dict | list) for choice in choices) else MAX_CHOICES
        _check(len(choices) <= most, f"{place}enum holds {len(choices)} values, but at most {most} are taken")
    _check_min_properties(place, schema)
    totals.multiple = math.lcm(totals.multiple, _multiple_of(schema))
    _check(totals.multiple <= MAX_MULTIPLE, f"{place}multipleOf: what all of them divide, decimal points left out, exceeds {MAX_MULTIPLE}")
    _bound_integers(schema)
    _take_format(schema)
    _take_patterns(place, schema, totals)


def _check_min_properties(place: str, schema: dict[str, Any]) -> None:
    """A name may come twice where names are free, and then counts once."""
    least, required = schema.get("minProperties"), schema.get("required")
    num_required = len({*required}) if isinstance(required, list) and all(isinstance(name, str) for name in required) else 0
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    holds = not isinstance(least, int | float) or least <= max(1, num_required) or is_closed
    _check(holds, f"{place}minProperties above 1 needs additionalProperties: false")


def _multiple_of(schema: dict[str, Any]) -> int:
    """multipleOf without its decimal point: a matcher has about as many states."""
    multiple = schema.get("multipleOf")
    if not isinstance(multiple, int | float) or isinstance(multiple, bool) or not 0 < multiple < math.inf:
        return 1  # llguidance has its own word on those
    digits = Decimal(str(multiple)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def _bound_integers(schema: dict[str, Any]) -> None:
    """Integers that all programs read as they are written; and small models do not find the end of a number."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" not in kinds or "number" in kinds or "enum" in schema or "const" in schema:
        return
    bounds = [schema[name] for name in _BOUNDS if isinstance(schema.get(name), int | float)]
    if all(abs(bound) < _LARGEST for bound in bounds):
        if not {"minimum", "exclusiveMinimum"} & schema.keys():
            schema["minimum"] = -_LARGEST
        if not {"maximum", "exclusiveMaximum"} & schema.keys():
            schema["maximum"] = _LARGEST


def _take_format(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name not in _OWN_FORMATS:
        return
    del schema["format"]
    others = schema.get("allOf")
    schema["allOf"] = [*(others if isinstance(others, list) else ()), {"pattern": _OWN_FORMATS[name]}]


def _take_patterns(place: str, schema: dict[str, Any], totals: _Totals) -> None:
    try:
        if isinstance(schema.get("pattern"), str):
            totals.regexes += regex_size(schema["pattern"])
            schema["pattern"] = portable(schema["pattern"])
        properties = schema.get("patternProperties")
        if isinstance(properties, dict):
            totals.regexes += sum(map(regex_size, properties))
            schema["patternProperties"] = {portable(pattern): part for pattern, part in properties.items()}
    except UnsupportedPatternError as error:
        raise _refusal(f"{place}pattern: {error} is not supported") from error
    most = f"with all repetitions written out, patterns have at most {MAX_REGEX_SIZE} characters"
    _check(totals.regexes <= MAX_REGEX_SIZE, f"{place}pattern is too large: {most}")


def _check(holds: bool, reason: str) -> None:
    if not holds:
        raise _refusal(reason)


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the JSON schema cannot be enforced: {reason}", "structured_outputs", "unsupported_schema")

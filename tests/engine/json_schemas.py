"""A hundred JSON schemas of rising difficulty: 82 that are enforced, and 18 that are refused with the construct named."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
STRING: Schema = {"type": "string"}
WORD: Schema = {"type": "string", "maxLength": 12}


def record(**properties: Schema) -> Schema:
    """A closed object of which every property is required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def items(of: Schema, least: int = 0, most: int = 3) -> Schema:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most}


TREE: Schema = {
    "$ref": "#/$defs/node",
    "$defs": {"node": record(value={"type": "integer", "minimum": 0, "maximum": 9}, children=items({"$ref": "#/$defs/node"}, most=2))},
}
LINKED: Schema = {
    "$ref": "#/$defs/link",
    "$defs": {"link": record(head=WORD, tail={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]})},
}
EXPRESSION: Schema = {
    "$ref": "#/$defs/expression",
    "$defs": {
        "expression": {"anyOf": [{"$ref": "#/$defs/number"}, {"$ref": "#/$defs/sum"}]},
        "number": {"type": "integer", "minimum": 0, "maximum": 99},
        "sum": {
            "type": "object",
            "properties": {"op": {"enum": ["+", "-"]}, "left": {"$ref": "#/$defs/expression"}, "right": {"$ref": "#/$defs/number"}},
            "required": ["op", "left", "right"],
            "additionalProperties": False,
        },
    },
}
SHAPE: Schema = {
    "oneOf": [
        record(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
        record(kind={"const": "square"}, side={"type": "number", "exclusiveMinimum": 0, "maximum": 100}),
        record(kind={"const": "polygon"}, corners=items(items(INTEGER, 2, 2), 3, 4)),
    ]
}
PERSON = record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 130})

SIMPLE: dict[str, Schema] = {
    "a boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "an integer": INTEGER,
    "a number": {"type": "number"},
    "a string": STRING,
    "a string with an upper bound": WORD,
    "a string of two to four characters": {"type": "string", "minLength": 2, "maxLength": 4},
    "an empty string": {"type": "string", "maxLength": 0},
    "any value": {},
    "any object": {"type": "object"},
    "any array": {"type": "array"},
    "a list of integers": items(INTEGER),
    "an empty list": items(INTEGER, 0, 0),
    "exactly three booleans": items({"type": "boolean"}, 3, 3),
    "one property": record(a=INTEGER),
    "an object without properties": record(),
    "a person": PERSON,
    "persons": items(PERSON, 1, 2),
    "annotations": {**PERSON, "title": "Person", "description": "One of us.", "examples": [{"name": "A", "age": 1}], "$comment": "x"},
}
CHOICES: dict[str, Schema] = {
    "an enum of texts": {"enum": ["red", "green", "blue"]},
    "an enum of all types": {"enum": ["a", 1, None, True, 1.5, {"x": []}, [1, "b"]]},
    "an enum within a type": {"type": "string", "enum": ["a", 1, "b"]},
    "an enum of 300 texts": {"enum": [f"value {i}" for i in range(300)]},
    "a constant": {"const": {"a": [1, None], "b": "c"}},
    "a constant with escapes": {"const": 'a"\\\n\té'},
    "a list of types": {"type": ["integer", "null", "boolean"]},
    "anyOf of types": {"anyOf": [INTEGER, {"type": "boolean"}]},
    "anyOf of objects": {"anyOf": [record(a=INTEGER), record(b=WORD), record(a=WORD, b=INTEGER)]},
    "anyOf with what is common": {
        "type": "object",
        "properties": {"id": INTEGER},
        "required": ["id"],
        "anyOf": [{"properties": {"x": INTEGER}, "required": ["x"]}, {"properties": {"y": WORD}, "required": ["y"]}],
    },
    "an optional value": record(a={"anyOf": [WORD, {"type": "null"}]}),
    "oneOf of types": {"oneOf": [INTEGER, WORD]},
    "oneOf by a constant": SHAPE,
    "a list of oneOf": items(SHAPE, 1, 2),
    "allOf of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"type": "object", "properties": {"b": WORD}, "required": ["b"], "additionalProperties": INTEGER},
        ]
    },
    "allOf of bounds": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "allOf of patterns": {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 5}]},
}
OBJECTS: dict[str, Schema] = {
    "optional properties": {"type": "object", "properties": {"a": INTEGER, "b": WORD, "c": INTEGER}, "additionalProperties": False},
    "some required": {"type": "object", "properties": {"a": INTEGER, "b": WORD}, "required": ["b"], "additionalProperties": False},
    "an open object": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
    "values of one type": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 3},
    "at least one value": {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": INTEGER, "^s_[a-z]{1,3}$": WORD},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "a name that is required but not described": {"type": "object", "required": ["zed"], "maxProperties": 2},
    "nested objects": record(a=record(b=record(c=record(d=INTEGER)))),
    "names in other scripts": record(**{"ключ": INTEGER, "鍵": WORD, "clé": {"type": "boolean"}}),
    "names with escapes": record(**{'a"b': INTEGER, "c\\d": INTEGER, "e\nf": INTEGER, "": INTEGER}),
    "fifteen properties": record(**{f"property_{i}": {"type": "boolean"} for i in range(15)}),
    "an order": record(
        id={"type": "string", "format": "uuid"},
        customer=PERSON,
        lines=items(record(article=WORD, count={"type": "integer", "minimum": 1, "maximum": 99}), 1, 2),
        paid={"type": "boolean"},
        total={"type": "number", "minimum": 0, "maximum": 10000, "multipleOf": 0.01},
    ),
}
ARRAYS: dict[str, Schema] = {
    "a tuple": {"type": "array", "prefixItems": [INTEGER, WORD, {"type": "boolean"}], "items": False, "minItems": 3},
    "a tuple and more": {"type": "array", "prefixItems": [WORD], "items": INTEGER, "minItems": 1, "maxItems": 3},
    "a tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [INTEGER, WORD],
        "additionalItems": False,
        "minItems": 2,
    },
    "a matrix": items(items({"type": "integer", "minimum": 0, "maximum": 9}, 2, 2), 2, 2),
    "a list of mixed values": items({"anyOf": [INTEGER, WORD, {"type": "null"}]}, 1, 4),
}
NUMBERS: dict[str, Schema] = {
    "an integer between bounds": {"type": "integer", "minimum": -15, "maximum": 117},
    "an integer between open bounds": {"type": "integer", "exclusiveMinimum": 999, "exclusiveMaximum": 10001},
    "a number between bounds": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.75},
    "a negative number": {"type": "number", "minimum": -2.5, "exclusiveMaximum": -0.125},
    "a multiple of seven": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 5000},
    "hundredths": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99},
    "a latitude and a longitude": record(
        latitude={"type": "number", "minimum": -90, "maximum": 90}, longitude={"type": "number", "minimum": -180, "maximum": 180}
    ),
}
TEXTS: dict[str, Schema] = {
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "a pattern with alternatives": {"type": "string", "pattern": "^(foo|ba[rz]{1,2}|)$"},
    "a pattern with escapes": {"type": "string", "pattern": '^["\\\\/]{1,3}\\n?$'},
    "a pattern of classes": {"type": "string", "pattern": "^\\d\\w\\s\\S\\D\\W[^\\w\\s][^\\d]$"},
    "a pattern of any characters": {"type": "string", "pattern": "^a.{1,8}z$"},
    "a pattern and a length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 6},
    "a pattern in other scripts": {"type": "string", "pattern": "^[а-яё]{1,8}$"},
    **{f"the format {name}": {"type": "string", "format": name} for name in ("date", "time", "date-time", "duration", "uuid", "ipv4")},
    **{f"the format {name}": {"type": "string", "format": name, "maxLength": 60} for name in ("ipv6", "email", "hostname", "uri")},
}
REFERENCES: dict[str, Schema] = {
    "a definition used twice": {**record(a={"$ref": "#/$defs/word"}, b={"$ref": "#/$defs/word"}), "$defs": {"word": WORD}},
    "a reference beside a bound": {"$ref": "#/$defs/small", "minimum": 5, "$defs": {"small": {"type": "integer", "maximum": 9}}},
    "a tree": TREE,
    "a linked list": LINKED,
    "an expression": EXPRESSION,
}
SCHEMAS = {**SIMPLE, **CHOICES, **OBJECTS, **ARRAYS, **NUMBERS, **TEXTS, **REFERENCES}

# And what a refusal must name.
REFUSED: dict[str, tuple[Schema, str]] = {
    "not": ({"not": STRING}, "not"),
    "if": ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "if"),
    "oneOf that overlaps": ({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}, "oneOf"),
    "uniqueItems": ({"type": "array", "items": INTEGER, "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": INTEGER}, "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "minProperties of free names": ({"type": "object", "minProperties": 2}, "minProperties"),
    "an unknown format": ({"type": "string", "format": "iri-reference"}, "iri-reference"),
    "look-ahead": ({"type": "string", "pattern": "^(?=a).*$"}, "(?="),
    "a word boundary": ({"type": "string", "pattern": "\\bword\\b"}, "\\b"),
    "a back reference": ({"type": "string", "pattern": "^(a)\\1$"}, "\\1"),
    "another document": ({"$ref": "https://example.com/schema.json"}, "https://example.com/schema.json"),
    "nothing at all": ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum"),
    "a required property that cannot be": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a'"),
    "an unknown type": ({"type": "text"}, "text"),
    "a bound of draft 4": ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, "exclusiveMinimum"),
}

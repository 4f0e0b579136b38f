"""Schemas, regexes and grammars that are none, that no automaton can hold, or that take long to compile."""

from __future__ import annotations

from typing import Any

from corpus import Attack, chat


def _schema(name: str, schema: Any, *statuses: int) -> Attack:
    given = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    return chat(f"schema: {name}", *(statuses or (400,)), response_format=given)


def _constraint(kind: str, name: str, value: Any, *statuses: int) -> Attack:
    return chat(f"{kind}: {name}", *(statuses or (400,)), structured_outputs={kind: value})


def _nested(depth: int, key: str = "properties") -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", key: {"a": schema}} if key == "properties" else {key: [schema, {"type": "null"}]}
    return schema


def refused() -> list[Attack]:
    """What cannot be enforced."""
    schemas: dict[str, Any] = {
        "a number": 5,
        "a list": [],
        "a string": "object",
        "false": False,
        "unknown type": {"type": "wrong"},
        "type of a number": {"type": 5},
        "a reference abroad": {"$ref": "http://169.254.169.254/latest"},
        "a reference to a file": {"$ref": "file:///etc/passwd"},
        "a reference to nowhere": {"$ref": "#/nowhere"},
        "a reference to itself": {"$ref": "#"},
        "a circle of references": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "properties of a list": {"type": "object", "properties": []},
        "required of a number": {"type": "object", "required": 5},
        "an empty enum": {"enum": []},
        "an enum of a number": {"enum": 5},
        "nothing that fits": {"type": "string", "minLength": 5, "maxLength": 2},
        "negative length": {"type": "string", "minLength": -1},
        "length of a text": {"type": "string", "maxLength": "x"},
        "a length of 10 to the 12": {"type": "string", "minLength": 10**12},
        "10 to the 9 items": {"type": "array", "minItems": 10**9},
        "half a regex": {"type": "string", "pattern": "("},
        "a regex that looks behind": {"type": "string", "pattern": "(?<=a)b"},
        "a regex that refers back": {"type": "string", "pattern": "(a)\\1"},
        "a regex of a number": {"type": "string", "pattern": 5},
        "a million repetitions": {"type": "string", "pattern": "(a{1000}){1000}"},
        "nesting of 200": _nested(65),
        "alternatives within alternatives, 200 deep": _nested(90, "anyOf"),
        "100,000 names": {"type": "object", "properties": {f"p{i}": {} for i in range(30_000)}},
        "50,000 choices": {"enum": [f"choice {i}" for i in range(50_000)]},
        "a text of 100,000": {"const": "x" * 100_000},
        "multiples of many primes": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]},
    }
    found = [_schema(name, schema) for name, schema in schemas.items()]
    regexes: dict[str, Any] = {
        "nothing but a bracket": "(",
        "a class without end": "[a",
        "a repetition of nothing": "*",
        "a backward repetition": "a{5,2}",
        "a look-ahead": "(?=a)b",
        "a look-behind": "(?<!a)b",
        "a back-reference": "(a)\\1",
        "a named group without end": "(?P<x",
        "a number": 5,
        "a list": ["a"],
        "10 to the 9 repetitions": "a{1000000000}",
        "repetitions of repetitions": "(((a{1000}){1000}){1000})",
        "a megabyte": "a" * 1_000_000,
        "20,000 brackets": "(" * 20_000 + ")" * 20_000,
        "a half surrogate": "\\ud800",
        "an unknown escape": "\\y",
        "an unknown class": "\\p{Nonsense}",
    }
    found += [_constraint("regex", name, regex) for name, regex in regexes.items()]
    grammars: dict[str, Any] = {
        "nonsense": "%%%",
        "no start": 'a: "x"',
        "an unknown rule": "start: nowhere",
        "a rule of itself": "start: start",
        "an import from a file": "%import .secrets (A)\nstart: A",
        "a number": 5,
        "a megabyte": 'start: "' + "a" * 1_000_000 + '"',
        "an unfinished string": 'start: "x',
    }
    found += [_constraint("grammar", name, grammar) for name, grammar in grammars.items()]
    found += [_constraint("choice", name, value) for name, value in (("none", []), ("a number", 5), ("numbers", [5]), ("a text", "x"))]
    found += [_constraint("choice", "20,000", [f"choice {i}" for i in range(20_000)])]
    found += [_constraint("structural_tag", name, value) for name, value in (("nothing", {}), ("a list", []), ("no tags", {"tags": []}))]
    found.append(chat("two constraints", 400, structured_outputs={"regex": "a", "choice": ["a"]}))
    found.append(chat("a constraint and a format", 400, structured_outputs={"regex": "a"}, response_format={"type": "json_object"}))
    found.append(chat("an unknown constraint", 400, structured_outputs={"spell": "x"}))
    return found


def heavy() -> list[Attack]:
    """What may be enforced or be refused, but must not keep anybody waiting."""
    either = (200, 400)
    regexes = {
        "nested stars": "(a*)*b",
        "nested stars, deep": "((((((a*)*)*)*)*)*)*b",
        "alternatives that overlap": "(a|aa|aaa|aaaa)*b",
        "optional letters": "a?" * 2000 + "a" * 2000,
        "a window": "(a|b)*a(a|b){14}",
        "a wide window": ".*a.{200}",
        "any text twice": "(.*,){50}.*",
        "letters of all scripts": "\\p{L}{1,200}",
        "what is not": "[^a]{5000}",
        "repetitions": "(abc){1,2000}",
        "many words": "|".join(f"word{i}" for i in range(800)),
        "emoji": "(🦑|🐙){1,500}",
    }
    found = [_constraint("regex", name, regex, *either) for name, regex in regexes.items()]
    many = [f"p{i}" for i in range(400)]
    alike = [{"type": "object", "properties": {"a": {"type": "string"}, f"b{i}": {}}} for i in range(50)]
    patterns = {f"p{i}": {"type": "string", "pattern": f"^[a-{chr(98 + i % 20)}]{{1,50}}$"} for i in range(100)}
    schemas: dict[str, Any] = {
        "400 optional names": {"type": "object", "properties": {name: {} for name in many}, "additionalProperties": False},
        "400 names": {"type": "object", "properties": {name: {"type": "integer"} for name in many}, "required": many},
        "60 deep": _nested(60),
        "30 alternatives deep": _nested(30, "anyOf"),
        "5,000 choices": {"enum": [f"choice {i}" for i in range(5000)]},
        "a tree": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 1000}}},
        "10,000 items": {"type": "array", "items": {"type": "integer"}, "minItems": 10_000},
        "an endless object": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "a million letters": {"type": "string", "maxLength": 1_000_000},
        "numbers between": {"type": "number", "minimum": -1e300, "maximum": 1e300},
        "whole numbers between": {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        "many patterns": {"type": "object", "properties": patterns},
        "50 alternatives that overlap": {"anyOf": alike},
        "formats": {"type": "array", "items": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "uri"}]},
    }
    found += [_schema(name, schema, *either) for name, schema in schemas.items()]
    grammars = {
        "an ambiguous rule": 'start: a\na: a a | "x" | ""',
        "more ambiguity": "start: a a a a a a a a\na: b* b*\nb: /x*/ | /x+/ | /xx/",
        "an endless repetition": 'start: "a"~1000000000',
        "a deep rule": "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)), 'r40: "x"']),
        "2,000 rules": "\n".join(["start: r0", *(f'r{i}: "x" r{i + 1}' for i in range(2000)), 'r2000: "x"']),
        "a long alternative": "start: " + " | ".join(f'"w{i}"' for i in range(4000)),
    }
    found += [_constraint("grammar", name, grammar, *either) for name, grammar in grammars.items()]
    return found

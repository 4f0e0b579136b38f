"""Constrained answers over HTTP, as the official client asks for them, and what is refused on arrival."""

from __future__ import annotations

import json
import re
import threading
import time
from enum import Enum
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from crowding import patience
from pydantic import BaseModel, Field

MODEL = "SmolLM2-135M-Instruct"
QUESTION: Any = [{"role": "user", "content": "Describe somebody."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Guest(BaseModel):
    name: str = Field(max_length=12)
    mood: Mood
    scores: list[int] = Field(max_length=2)


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 60, "seed": 1, **fields})


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def test_parse_of_the_official_client_returns_the_pydantic_model(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Guest, max_tokens=200, seed=3)
    assert isinstance(completion.choices[0].message.parsed, Guest)


def test_a_json_schema_holds_streamed_or_not_and_both_are_the_same(http: httpx.Client) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    whole = text_of(ask(http, response_format=response_format))
    jsonschema.validate(json.loads(whole), PERSON)
    streamed = ask(http, response_format=response_format, stream=True).text
    pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(choice["delta"].get("content") or "" for piece in pieces for choice in piece["choices"]) == whole


def test_a_json_object_begins_as_one(http: httpx.Client) -> None:
    assert text_of(ask(http, response_format={"type": "json_object"})).startswith("{")


def test_a_json_schema_without_a_schema_is_any_object(http: httpx.Client) -> None:
    assert text_of(ask(http, response_format={"type": "json_schema", "json_schema": {"name": "x"}})).startswith("{")


def test_the_type_text_asks_for_nothing(http: httpx.Client) -> None:
    assert text_of(ask(http, response_format={"type": "text"})) == text_of(ask(http))


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"json": json.dumps(PERSON)}, r"\{.*\}"),
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "a" | "b"'}, "a|b"),
        ({"structural_tag": {"structures": [{"begin": "a", "regex": "[0-9]", "end": "!"}]}}, "(?s:([^a]*a[0-9]!)*[^a]*(a[0-9]?)?)"),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_each_kind_of_constraint_holds_on_both_endpoints(http: httpx.Client, endpoint: str, constraint: Any, pattern: str) -> None:
    if endpoint == "chat":
        text = text_of(ask(http, structured_outputs=constraint))
    else:
        body = {"prompt": "Say:", "max_tokens": 60, "seed": 1, "structured_outputs": constraint}
        text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("fields", "param", "code", "named"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, "response_format", "u", "not"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "structured_outputs", "u", "uniqueItems"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs", "i", "regex"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs", "i", "nowhere"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", None, "regex and choice"),
        ({"structured_outputs": {}}, "structured_outputs", None, "none"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", None, "JSON"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs", None, "response_format"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "min_tokens", None, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "use_beam_search": True}, "use_beam_search", None, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type", None, "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", None, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name", None, "required"),
        ({"guided_json": PERSON}, "guided_json", "unsupported_parameter", "structured_outputs"),
    ],
)
def test_what_cannot_be_enforced_is_refused_on_arrival_and_named(
    http: httpx.Client, fields: dict[str, Any], param: str, code: str | None, named: str
) -> None:
    response = ask(http, **fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert error["code"] == {"u": "unsupported_schema", "i": "invalid_grammar"}.get(code or "", code)
    assert named in error["message"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(depth: int) -> dict[str, Any]:
    """A schema whose size, references followed, is two to the power of `depth`."""
    one_of_two = [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/0"}]
    parts: dict[str, Any] = {"0": {"type": "integer"}}
    for i in range(1, depth):
        one_of_two = [{"type": "object", "properties": {f"p{i}_{j}": {"$ref": f"#/$defs/{i - 1}"}}} for j in range(2)]
        parts[str(i)] = {"allOf": [{"anyOf": one_of_two}, {"anyOf": one_of_two}]}
    return {"$ref": f"#/$defs/{depth - 1}", "$defs": parts}


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"json": nested(100)},
    "doubled by references": {"json": doubled(30)},
    "a product of alternatives": {
        "json": {"allOf": [{"anyOf": [{"type": "object", "required": [f"p{i}_{j}"]} for j in range(6)]} for i in range(10)]}
    },
    "a thousand times a thousand": {"json": {"type": "string", "pattern": "^(a{1000}){1000}$"}},
    "a regex of a billion": {"regex": "a{1000000000}"},
    "nested counts": {"regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "remainders": {"json": {"type": "integer", "multipleOf": 999983}},
    "remainders that multiply": {"json": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 89, 83, 79)]}},
    "remainders within a grammar": {"grammar": 'start: %json {"type":"integer","multipleOf":999983}'},
    "a giant enum": {"json": {"enum": [f"value {i}" for i in range(30_000)]}},
    "an enum of objects": {"json": {"enum": [{"a": i} for i in range(5_000)]}},
    "many properties": {"json": {"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}}},
    "a long constant": {"json": {"const": "x" * 5_000}},
    "intersections": {"grammar": "start: A\nA: " + " & ".join(f"/(?s:.*)a.{{{i}}}b(?s:.*)/" for i in range(1, 20))},
    "brackets": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "brackets of a regex": {"regex": "(" * 4000 + "a" + ")" * 4000},
    "many choices": {"choice": [f"choice {i}" for i in range(20_000)]},
    "itself": {"json": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"}},
    "another document": {"json": {"$ref": "http://example.com/schema.json"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_within_a_second(http: httpx.Client, name: str) -> None:
    started = time.monotonic()
    response = ask(http, structured_outputs=HOSTILE[name], max_tokens=4)
    assert response.status_code == 400, response.text
    took = time.monotonic() - started
    assert took < patience(1)


def test_streams_go_on_while_hostile_constraints_are_refused(http: httpx.Client, client: openai.OpenAI) -> None:
    refused = []

    def attack() -> None:
        for name in ("intersections", "a product of alternatives", "doubled by references"):
            refused.append(ask(http, structured_outputs=HOSTILE[name]).status_code)

    ask(http, max_tokens=1)
    thread = threading.Thread(target=attack)
    gaps, last = [], time.monotonic()
    stream = client.completions.create(model=MODEL, prompt="Once", max_tokens=150, stream=True, extra_body={"ignore_eos": True})
    thread.start()
    for _ in stream:
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    thread.join()
    assert refused == [400] * 3
    assert max(gaps[1:]) < 0.5


def test_a_grammar_that_cannot_be_followed_ends_its_own_request_with_an_error(http: httpx.Client) -> None:
    doubling = 'start: "go" a0\n' + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(30)) + 'a30: "x"'
    response = ask(http, structured_outputs={"grammar": doubling})
    assert response.status_code == 500
    assert "grammar" in response.json()["error"]["message"]
    assert text_of(ask(http))

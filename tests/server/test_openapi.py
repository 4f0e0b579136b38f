"""/openapi.json says what every endpoint takes and answers, and the server does as it says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import jsonschema
import openapi_spec_validator
import pytest
from live_server import RunningServer

from server.openapi.bounds import BOUNDS

MODEL = "SmolLM2-135M-Instruct"
HELLO = [{"role": "user", "content": "Hello"}]
_CALL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
_TOOLS = {"tools": [_CALL], "tool_choice": "required"}
_FLAT = {"tools": [{"type": "function", **_CALL["function"]}], "tool_choice": "required"}  # type: ignore[dict-item]
_CLAUDE = {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}
_RICH = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
# Of each endpoint, what its answers may look like.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "n": 2, "prompt_logprobs": 1, **_RICH}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 60, **_TOOLS}),
    ("/v1/completions", {"prompt": ["Hello", "Hi"], "max_tokens": 3, "logprobs": 2, "echo": True, "return_token_ids": True}),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 3, "prompt_logprobs": 1}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 60, **_FLAT}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 60, "text": {"format": {"type": "json_object"}}, "instructions": "Hm"}),
    ("/v1/responses/input_tokens", {"input": "Hello"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 3}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 60, **_CLAUDE}),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
    ("/v1/embeddings", {"input": ["Hello", "Hi"]}),
    ("/v1/embeddings", {"input": "Hello", "encoding_format": "base64"}),
    ("/v1/score", {"text_1": "Hello", "text_2": ["Hi", "Ho"]}),
    ("/v1/rerank", {"query": "Hello", "documents": ["Hi", "Ho"]}),
    ("/tokenize", {"prompt": "Hello", "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2]}),
]


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def _validator(document: dict[str, Any], schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """Of what is the schema's and nothing more: a field that the document does not name is an error too."""

    def closed(node: Any) -> Any:
        if isinstance(node, list):
            return [closed(one) for one in node]
        if not isinstance(node, dict):
            return node
        more = {"additionalProperties": False} if "properties" in node and "additionalProperties" not in node else {}
        return {name: closed(value) for name, value in node.items()} | more

    components = {"schemas": {name: closed(one) for name, one in document["components"]["schemas"].items()}}
    return jsonschema.Draft202012Validator({**closed(schema), "components": components})


def _answers(document: dict[str, Any], path: str) -> dict[str, Any]:
    content: dict[str, Any] = document["paths"][path]["post"]["responses"]["200"]["content"]
    return content


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    openapi_spec_validator.validate(document)
    assert {"bearer", "apiKey"} == set(document["components"]["securitySchemes"])
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names)) > 25
    assert "create_chat_completion" in names, "what generated clients call it"
    assert not any("422" in operation["responses"] for operation in operations)


def test_every_operation_names_the_schema_of_its_body_and_its_answers(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path in ("/health", "/ready", "/version"):
                continue
            contents = [operation["responses"]["200"]["content"]]
            contents += [operation["requestBody"]["content"]] if method == "post" and "cancel" not in path else []
            for content in contents:
                assert content, (method, path)
                assert all(media["schema"] for media in content.values()), (method, path)
            if path != "/metrics":
                assert {"400", "401", "404", "429", "500"} <= set(operation["responses"])


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
def test_bodies_answers_and_events_are_as_the_document_says(
    document: dict[str, Any], http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    answers = _answers(document, path)
    streamed = {**body, "stream": True} if "text/event-stream" in answers and "prompt_logprobs" not in body else None
    for sent in filter(None, (body, streamed)):
        _validator(document, asked).validate(sent)
        answer = http.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        if "stream" not in sent:
            _validator(document, answers["application/json"]["schema"]).validate(answer.json())
            continue
        data = answers["text/event-stream"]["schema"]["properties"]["data"]
        event = _validator(document, data.get("anyOf", [data])[0]["contentSchema"])
        frames = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        for frame in frames:
            if frame != "[DONE]":
                event.validate(json.loads(frame))
        assert len(frames) > 3


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
def test_models_are_as_the_document_says(document: dict[str, Any], http: httpx.Client, path: str) -> None:
    described = document["paths"]["/v1/models" if path == "/v1/models" else "/v1/models/{name}"]["get"]
    _validator(document, described["responses"]["200"]["content"]["application/json"]["schema"]).validate(http.get(path).json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_refusals_are_as_the_document_says(document: dict[str, Any], http: httpx.Client, path: str) -> None:
    reference = document["paths"][path]["post"]["responses"]["400"]["$ref"]
    described = document["components"]["responses"][reference.rpartition("/")[2]]
    answer = http.post(path, json={"messages": HELLO, "max_tokens": 1, "temperature": 1000})
    assert answer.status_code == 400
    _validator(document, described["content"]["application/json"]["schema"]).validate(answer.json())


def _beyond(name: str, kind: str, bounds: dict[str, Any]) -> list[Any]:
    """Values just outside the bounds."""
    values: list[Any] = [bounds[key] - 1 for key in ("minimum", "exclusiveMinimum") if key in bounds]
    values += [bounds[key] + 1 for key in ("maximum", "exclusiveMaximum") if key in bounds]
    if kind == "array":
        item: Any = HELLO[0] if name == "messages" else _CALL if name == "tools" else 1 if "items" in bounds else "x"
        values += [[]] if "minItems" in bounds else []
        values += [[item] * (bounds["maxItems"] + 1)] if "maxItems" in bounds else []
    if kind == "object":
        values += [{"1": 101}, {"x": 1}, {str(token): 1 for token in range(bounds["maxProperties"] + 1)}]
    return values


CHATTY = [name for name in BOUNDS if name not in ("dimensions", "tokens", "best_of", "logprobs", "length_penalty", "stop_sequences")]


@pytest.mark.parametrize("name", CHATTY)
def test_what_is_beyond_a_bound_of_the_document_is_refused_by_name(document: dict[str, Any], http: httpx.Client, name: str) -> None:
    asked = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = _validator(document, asked)
    values = [value for kind, bounds in BOUNDS[name].items() for value in _beyond(name, kind, bounds)]
    assert values
    for value in values:
        body = {"messages": HELLO, "max_tokens": 1, "logprobs": True, name: value}
        assert not validator.is_valid(body), value
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, value
        assert answer.json()["error"]["param"].startswith(name)


def test_admin_endpoints_are_documented_where_there_is_an_admin(document: dict[str, Any], guarded: Any) -> None:
    key = {"authorization": f"Bearer {guarded.keys['front']}"}
    there = httpx.get(f"{guarded.url}/openapi.json", headers=key).json()
    switches = {"/reset_prefix_cache", "/sleep", "/wake_up", "/is_sleeping", "/log_level", "/start_profile", "/stop_profile"}
    assert set(there["paths"]) - set(document["paths"]) == switches


def test_schemathesis_finds_nothing_in_a_small_run(server: RunningServer) -> None:
    command = [sys.executable, "-m", "loadtest.schemathesis_run", "--url", server.url, "--cases", "50", "--operation", "detokenize"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at least 50" in done.stdout

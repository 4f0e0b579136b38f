"""Every error is OpenAI's error object, with the status that the SDK turns into its exception classes."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert "Traceback" not in response.text
    assert response.headers["x-request-id"]
    return error


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hello"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize("path", ["/v1/nothing", "/index.html", "/v1/chat/completions/"])
def test_an_unknown_route_is_a_404(http: httpx.Client, path: str) -> None:
    assert _error(http.get(path), 404)["code"] == "unknown_url"


def test_a_wrong_method_is_a_405_that_names_the_right_one(http: httpx.Client) -> None:
    response = http.get(CHAT)
    assert "POST" in _error(response, 405)["message"]
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": HELLO, "temperature": -1}, "temperature", None),
        ({"messages": HELLO, "temperature": 1e999}, None, "invalid_json"),
        ({"messages": HELLO, "top_p": 0}, "top_p", None),
        ({"messages": HELLO, "n": 0}, "n", None),
        ({"messages": HELLO, "n": 10**30}, "n", None),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens", None),
        ({"messages": HELLO, "max_tokens": 10**30}, "max_tokens", "context_length_exceeded"),
        ({"messages": HELLO, "seed": 10**30}, "seed", None),
        ({"messages": HELLO, "stop": ""}, "stop", None),
        ({"messages": HELLO, "stop_token_ids": [10**9]}, "stop_token_ids", None),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", None),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", None),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options", None),
        ({"messages": HELLO, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs", None),
        ({"messages": HELLO, "tools": [{"type": "web_search"}]}, "tools.0.type", "unsupported_parameter"),
        ({"messages": HELLO, "guided_json": {}}, "guided_json", "unsupported_parameter"),
        ({"messages": HELLO, "colour": "blue"}, "colour", "unknown_parameter"),
        ({"messages": [{**HELLO[0], "colour": "blue"}]}, "messages.0.colour", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0", "unsupported_parameter"),
        ({"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", None),
        ({"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template", "unsupported_parameter"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_a_bad_parameter_is_a_400_that_names_it(http: httpx.Client, body: dict[str, Any], param: str | None, code: str | None) -> None:
    error = _error(http.post(CHAT, content=json.dumps(body)), 400)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize("prompt", ["", [10**9], [-1], ["fine", ""]], ids=str)
def test_a_prompt_that_cannot_be_is_a_400(http: httpx.Client, prompt: Any) -> None:
    assert _error(http.post("/v1/completions", json={"prompt": prompt}), 400)["param"] == "prompt"


def test_a_prompt_that_nearly_fills_the_context_is_continued_as_far_as_it_goes(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": [1000] * 1023, "seed": 2**64 - 1, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 1
    asked = http.post("/v1/completions", json={"prompt": [1000] * 1023, "max_tokens": 2})
    assert _error(asked, 400)["code"] == "context_length_exceeded"


def test_a_prompt_that_fills_the_context_can_be_scored(http: httpx.Client) -> None:
    body = {"prompt": [1000 + i % 7 for i in range(1024)], "max_tokens": 0, "echo": True, "logprobs": 1}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert len(choice["logprobs"]["token_logprobs"]) == 1024
    assert None not in choice["logprobs"]["token_logprobs"][1:]
    too_long = http.post("/v1/completions", json={**body, "prompt": [1000] * 1025})
    assert _error(too_long, 400)["code"] == "context_length_exceeded"


def test_a_negative_max_tokens_is_refused_with_what_is_allowed(http: httpx.Client) -> None:
    error = _error(http.post("/v1/completions", json={"prompt": "a", "max_tokens": -1}), 400)
    assert error["param"] == "max_tokens"
    assert "greater than or equal to 0" in error["message"]


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_a_body_that_does_not_say_that_it_is_json_is_refused(http: httpx.Client, given: str) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1})
    error = _error(http.post(CHAT, content=body, headers={"content-type": given}), 400)
    assert error["code"] == "invalid_content_type"
    assert "application/json" in error["message"]


def test_a_compressed_body_is_a_415_that_names_the_encoding(http: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"messages": HELLO, "max_tokens": 1}).encode())
    error = _error(http.post(CHAT, content=body, headers={"content-encoding": "gzip"}), 415)
    assert error["code"] == "unsupported_content_encoding"
    assert "gzip" in error["message"]


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_a_message_without_content_is_refused_unless_it_is_an_assistants(http: httpx.Client, role: str) -> None:
    error = _error(http.post(CHAT, json={"messages": [{"role": role, "content": None}], "max_tokens": 1}), 400)
    assert "has no content" in error["message"]
    assert str(error["param"]).startswith("messages")


def test_only_a_web_page_must_name_the_type_of_its_body(http: httpx.Client) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1})
    assert http.post(CHAT, content=body).status_code == 200
    assert http.post(CHAT, content=body, headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 200
    assert _error(http.post(CHAT, content=body, headers={"origin": "http://page"}), 400)["code"] == "invalid_content_type"


def test_a_body_over_the_bound_is_a_413(http: httpx.Client) -> None:
    assert _error(http.post(CHAT, content=b" " * (17 << 20)), 413)["code"] == "request_too_large"
    chunks = (b" " * (1 << 20) for _ in range(17))
    assert _error(http.post(CHAT, content=chunks), 413)["code"] == "request_too_large"


def _raw(server: RunningServer, data: bytes) -> bytes:
    """What a connection is answered by the time it is closed."""
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(data)
        while part := raw.recv(1 << 16):
            received += part
    return received


def test_a_client_that_sends_all_before_it_reads_still_sees_the_413(server: RunningServer) -> None:
    answer = _raw(server, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n" % CHAT.encode() + b" " * 20_000_000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer


def test_a_client_that_asks_before_it_sends_is_refused_at_once(server: RunningServer) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20000000\r\n\r\n"
    assert _raw(server, head % CHAT.encode()).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"WHAT /health HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["TLS", "length", "header", "method"],
)
def test_what_is_no_http_is_told_so_with_the_error_object(server: RunningServer, data: bytes) -> None:
    head, _, body = _raw(server, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_url_or_headers_that_are_too_long_have_statuses_of_their_own(server: RunningServer) -> None:
    assert _raw(server, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 414 ")
    for headers in (b"a: b\r\n" * 200, b"a: " + b"b" * 70_000 + b"\r\n", b"a: " + b"b" * 70_000):
        answer = _raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"headers_too_large" in answer


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nHost:", b""),
        (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", b"HTTP/1.1 408"),
        (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{", b"HTTP/1.1 408"),
    ],
    ids=["nothing", "headers", "body", "chunks"],
)
def test_a_request_that_does_not_arrive_is_given_up(impatient: RunningServer, data: bytes, answer: bytes) -> None:
    assert _raw(impatient, data).startswith(answer)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that need not have loaded its model."""
    with running_server(tmp_path_factory.mktemp("impatient"), "--receive-timeout", "0.5", "--no-web-page") as server:
        yield server


def test_a_server_without_the_page_has_nothing_in_its_place(impatient: RunningServer) -> None:
    for path in ("/", "/web/app.js"):
        answer = httpx.get(impatient.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_null_bytes_and_odd_characters_are_text(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a\u0000b\ufffe\U0001f991 <|im_end|>"}]
    assert http.post(CHAT, json={"messages": messages, "max_tokens": 1}).status_code == 200


def test_a_request_id_is_kept_when_it_is_sane_and_made_when_not(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "trace-1:a"}).headers["x-request-id"] == "trace-1:a"
    made = [http.get("/health", headers={"x-request-id": "a b" * 100}).headers["x-request-id"] for _ in range(2)]
    assert made[0].startswith("req_")
    assert made[0] != made[1]


def test_a_request_that_is_no_http_does_no_harm(server: RunningServer, http: httpx.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400" in raw.recv(1000)
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert http.get("/health").status_code == 200


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)
_NAMES = ["temperature", "stop", "n", "logit_bias", "stream_options", "tools", "logprobs", "seed", "chat_template_kwargs", "priority"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=2),
    prompt=_JSON,
    endpoint=st.sampled_from([(CHAT, "messages"), ("/v1/completions", "prompt"), ("/tokenize", "prompt"), ("/detokenize", "tokens")]),
)
def test_nothing_that_a_client_sends_is_a_500(http: httpx.Client, body: dict[str, Any], prompt: Any, endpoint: tuple[str, str]) -> None:
    path, name = endpoint
    response = http.post(path, json={**body, name: prompt, **({"max_tokens": 1} if path.startswith("/v1") else {})})
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        _error(response, 400)

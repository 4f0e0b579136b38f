"""Penalties, biases and bans over HTTP, against a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

MODEL = "SmolLM2-135M-Instruct"
HELLO: Any = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}


def answer(http: httpx.Client, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    response = http.post(path, json={**({} if "prompt" in body else GREEDY), **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


@pytest.fixture(scope="module")
def plain(http: httpx.Client) -> dict[str, Any]:
    return answer(http)


def test_a_bias_bans_a_token_or_forces_it(http: httpx.Client, plain: dict[str, Any]) -> None:
    first = plain["token_ids"][0]
    assert answer(http, logit_bias={str(first): -100}, max_tokens=1)["token_ids"] != [first]
    assert answer(http, logit_bias={"28": 100}, max_tokens=4)["token_ids"] == [28] * 4


def test_the_sdk_sends_biases_and_penalties_as_they_are_meant(client: openai.OpenAI) -> None:
    forced = {"28": 100, "30": 100}
    body: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 8, "logit_bias": forced}
    same = client.chat.completions.create(**body, extra_body={"return_token_ids": True})
    other = client.chat.completions.create(
        **body, frequency_penalty=2.0, presence_penalty=2.0, extra_body={"return_token_ids": True, "ignore_eos": True}
    )
    assert len(set(same.choices[0].token_ids)) == 1  # type: ignore[attr-defined]
    assert set(other.choices[0].token_ids) == {28, 30}  # type: ignore[attr-defined]


def test_penalties_let_less_be_repeated(http: httpx.Client) -> None:
    prompt = "one one one one one one one one one one"
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    plain = answer(http, "/v1/completions", **body)["token_ids"]
    assert len(set(plain)) < 6
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2.0}):
        assert len(set(answer(http, "/v1/completions", **body, **penalty)["token_ids"])) > len(set(plain)), penalty


def test_only_allowed_tokens_are_generated_and_banned_words_are_not(http: httpx.Client, plain: dict[str, Any]) -> None:
    assert set(answer(http, allowed_token_ids=[28, 30, 339], temperature=1.5)["token_ids"]) <= {28, 30, 339}
    text = plain["message"]["content"]
    words = sorted(set(text.split()), key=len)[-3:]
    banned = answer(http, bad_words=words)["message"]["content"]
    assert not any(word in banned for word in words)


def test_an_answer_that_repeats_itself_ends_with_a_reason_that_openais_clients_know(http: httpx.Client) -> None:
    rule = {"max_pattern_size": 4, "min_count": 6}
    choice = answer(http, logit_bias={"28": 100}, repetition_detection=rule)
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == ([28] * 6, "stop", "repetition_detected")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logit_bias", {"49152000": 1}),
        ("logit_bias", {"49999": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("logit_bias", [5]),
        ("bad_words", [""]),
        ("bad_words", "word"),
        ("bad_words", ["word " * 100]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("repetition_detection", {"max_pattern_size": 0}),
        ("repetition_detection", True),
    ],
)
def test_values_out_of_range_are_bad_requests_that_name_the_parameter(http: httpx.Client, path: str, name: str, value: Any) -> None:
    body = {"messages": HELLO} if "chat" in path else {"prompt": "Hi"}
    assert error(http.post(path, json={**body, name: value}), 400)["param"].split(".")[0] == name


def test_a_request_that_leaves_no_token_fails_alone_with_an_error_that_says_so(http: httpx.Client, plain: dict[str, Any]) -> None:
    impossible = {**GREEDY, "allowed_token_ids": [2], "min_tokens": 3, "ignore_eos": False, "stop_token_ids": [2]}
    found = error(http.post("/v1/chat/completions", json=impossible), 500)
    assert (found["type"], found["code"]) == ("server_error", "generation_failed")
    assert "exclude them all" in found["message"]
    streamed = http.post("/v1/chat/completions", json={**impossible, "stream": True}).text.strip().split("\n\n")
    assert json.loads(streamed[-1].removeprefix("data: "))["error"] == found
    assert answer(http) == plain

"""What a client sees of deadlines, of a full queue, and of whose turn it is."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live_server import RunningServer, running_server
from starlette.requests import Request

from server.access.caller import ANYBODY, Caller
from server.observability.record import new_record
from server.protocol.chat import ChatCompletionRequest
from server.routes.generate import _tenant_of

LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True}


def test_a_request_that_reaches_its_timeout_is_a_408_and_its_work_stops(server: RunningServer, http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**LONG, "timeout": 0.2})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (408, "timeout_error", "timeout")
    assert "reached its timeout" in error["message"]
    server.wait_until_idle(3)


def test_a_stream_that_reaches_its_timeout_ends_with_an_error_event(server: RunningServer, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={**LONG, "timeout": 0.3, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert len(events) > 2
    assert json.loads(events[-1])["error"]["code"] == "timeout"
    server.wait_until_idle(3)


def test_the_sdk_does_not_repeat_what_was_too_late(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5, timeout=60) as client:
        before = server.metric('octavo_http_responses_total{method="POST",status="408"}')
        model = client.models.list().data[0].id
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(model=model, prompt="Once", max_tokens=1000, extra_body={"timeout": 0.1, "ignore_eos": True})
        assert caught.value.status_code == 408
        assert server.metric('octavo_http_responses_total{method="POST",status="408"}') == before + 1


@pytest.mark.parametrize("timeout", [0, -1, "5", True])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(http: httpx.Client, timeout: Any) -> None:
    answer = http.post("/v1/completions", json={**LONG, "timeout": timeout})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


def test_a_server_with_a_full_queue_says_429_and_its_own_timeout_is_the_default(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-num-seqs", "1", "--max-waiting-requests", "2", "--request-timeout", "3") as server:
        server.wait_until_ready()
        url = f"{server.url}/v1/completions"
        statuses: list[int] = []
        clients = [threading.Thread(target=lambda: statuses.append(httpx.post(url, json=LONG, timeout=30).status_code)) for _ in range(3)]
        clients[0].start()
        server._wait(lambda: server.metric("octavo_sequences_running") == 1, 5)
        for client in clients[1:]:
            client.start()
        server._wait(lambda: server.metric("octavo_sequences_waiting") == 2, 5)
        refused = httpx.post(url, json=LONG)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "server_overloaded")
        assert refused.headers["retry-after"] == "1"
        many = httpx.post(url, json={**LONG, "prompt": ["a", "b", "c"]})
        assert (many.status_code, many.json()["error"]["param"]) == (400, "prompt")
        for client in clients:
            client.join()
        assert statuses == [408] * 3
        server.wait_until_idle(3)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {**LONG, "prompt": ["a"] * 3, "n": 128}, "n"),
        ("/v1/completions", {**LONG, "prompt": ["a"] * 3, "best_of": 128}, "n"),
        ("/v1/completions", {**LONG, "prompt": ["a"] * 300}, "prompt"),
    ],
)
def test_a_request_for_too_many_sequences_is_refused_with_the_numbers(http: httpx.Client, path: str, body: Any, param: str) -> None:
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert re.search(r"are \d+ sequences, but a request may ask for 256", answer.json()["error"]["message"])


def test_each_sequence_of_a_request_takes_a_place(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-pending-requests", "4") as server:
        server.wait_until_ready()
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json={**LONG, "prompt": ["a", "b", "c"], "stream": True}, timeout=30) as running:
            lines = running.iter_lines()
            next(lines)
            short = {**LONG, "max_tokens": 1}
            assert httpx.post(url, json={**short, "n": 2}).status_code == 429
            assert httpx.post(url, json=short).status_code == 200
        server.wait_until_idle(3)
        assert httpx.post(url, json={**short, "n": 4}).status_code == 200


def test_one_users_single_request_is_not_behind_all_of_anothers(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-num-seqs", "1", "--scheduling-policy", "fair") as server:
        server.wait_until_ready()
        finished: list[str] = []

        def ask(user: str, max_tokens: int) -> None:
            body = {**LONG, "max_tokens": max_tokens, "user": user}
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()
            finished.append(user)

        clients = [threading.Thread(target=ask, args=("many", 24)) for _ in range(12)]
        for client in clients:
            client.start()
        server._wait(lambda: server.metric("octavo_sequences_waiting") >= 6, 10)
        clients.append(threading.Thread(target=ask, args=("one", 4)))
        clients[-1].start()
        for client in clients:
            client.join()
    assert finished.count("many") == 12
    assert finished.index("one") <= 8  # some of the others may have ended before it came; in order of arrival it would be 12


def _tenant(key: str | None, caller: Caller = ANYBODY, **body: Any) -> str:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [] if key is None else [(b"authorization", f"Bearer {key}".encode())],
    }
    new_record(scope).caller = caller
    request = Request(scope)
    return _tenant_of(request, ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **body))  # type: ignore[list-item]


def test_a_request_takes_its_users_turn_or_else_that_of_its_key() -> None:
    assert _tenant("secret", user="ann") == _tenant("other", user="ann") == _tenant(None, safety_identifier="ann")
    assert _tenant("secret", user="ann") != _tenant("secret", user="bob")
    assert _tenant("secret") != _tenant("other")
    assert "secret" not in _tenant("secret")
    assert _tenant(None) == ""


def test_who_has_a_key_of_their_own_gains_no_turns_by_naming_users() -> None:
    assert (
        _tenant("secret", Caller("front"), user="ann")
        == _tenant("secret", Caller("front"), user="bob")
        != _tenant("secret", Caller("back"))
    )

"""The admin endpoints: who may call them, and what a server does that was put to sleep."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import psutil
import pytest
from live_server import Guarded, RunningServer

from server.routes import admin

LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def ops(guarded: Guarded) -> Any:
    with httpx.Client(base_url=guarded.url, headers={"x-api-key": guarded.keys["ops"]}, timeout=60) as client:
        yield client


@pytest.mark.parametrize("path", sorted(admin.PATHS))
def test_without_an_admins_key_an_admin_endpoint_does_not_exist(server: RunningServer, http: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        refused = http.request(method, path, headers={"authorization": "Bearer x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("path", sorted(admin.PATHS))
def test_admin_endpoints_are_for_admins_alone(guarded: Guarded, path: str) -> None:
    assert httpx.post(guarded.url + path).status_code == 401
    refused = httpx.post(guarded.url + path, headers={"x-api-key": guarded.keys["front"]})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")


def test_the_cache_is_reset_and_the_log_turned_up_while_the_server_runs(guarded: Guarded, ops: httpx.Client) -> None:
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 10, "max_tokens": 1}

    def cached() -> int:
        usage = ops.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    assert ops.post("/reset_prefix_cache").json() == {"success": True}
    assert cached() == 0
    assert ops.post("/log_level", params={"level": "debug"}).json() == {"level": "debug"}
    ops.get("/health")
    guarded.server._wait(lambda: "GET /health" in guarded.server.log, 10)  # the line is written after the answer
    assert ops.post("/log_level", params={"level": "loud"}).status_code == 400
    ops.post("/log_level", params={"level": "info"})
    assert ops.get("/log_level").json() == {"level": "info"}


def test_asleep_a_server_gives_its_cache_back_and_refuses_and_awake_it_answers_as_before(guarded: Guarded, ops: httpx.Client) -> None:
    text = ops.post("/v1/completions", json=LONG).json()["choices"][0]["text"]
    for start in range(3):  # fill some of the cache
        ops.post("/v1/completions", json={"prompt": [1000 + start] * 900, "max_tokens": 1}).raise_for_status()
    running: list[httpx.Response] = []
    request = threading.Thread(
        target=lambda: running.append(httpx.post(f"{guarded.url}/v1/completions", json=LONG, headers=dict(ops.headers), timeout=60))
    )
    request.start()
    guarded.server._wait(lambda: guarded.server.metric("octavo_sequences_running") == 1, 10)
    (engine,) = psutil.Process(guarded.server.process.pid).children()
    before = engine.memory_info().rss

    assert ops.post("/sleep", params={"level": "2"}).status_code == 400
    assert ops.post("/sleep", params={"mode": "dream"}).status_code == 400
    assert ops.post("/sleep").json() == {"is_sleeping": True}
    request.join()
    assert running[0].json()["choices"][0]["text"] == text, "what ran was finished"
    assert ops.post("/sleep").json() == ops.get("/is_sleeping").json() == {"is_sleeping": True}
    assert engine.memory_info().rss < before - (60 << 20)
    refused = ops.post("/v1/completions", json=LONG)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_sleeping")
    assert (ops.get("/ready").status_code, ops.get("/health").status_code) == (503, 200)

    engine.kill()  # an engine that dies asleep is replaced by one that sleeps
    guarded.server._wait(lambda: "starting it again" in guarded.server.log, 10)
    time.sleep(0.1)
    assert ops.post("/wake_up").json() == ops.get("/is_sleeping").json() == {"is_sleeping": False}
    assert ops.post("/v1/completions", json=LONG).json()["choices"][0]["text"] == text


def test_whoever_does_not_want_to_wait_aborts_what_runs(guarded: Guarded, ops: httpx.Client) -> None:
    body = {**LONG, "max_tokens": 900, "stream": True}
    with ops.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert httpx.post(f"{guarded.url}/sleep?mode=abort", headers=dict(ops.headers)).status_code == 200
        assert "server_sleeping" in [line for line in lines if line][-1]
    assert ops.post("/wake_up").status_code == 200


def test_profiles_are_made_only_where_there_is_a_directory_for_them(ops: httpx.Client) -> None:
    for path in ("/start_profile", "/stop_profile"):
        refused = ops.post(path)
        assert refused.status_code == 400
        assert "profile" in refused.json()["error"]["message"]

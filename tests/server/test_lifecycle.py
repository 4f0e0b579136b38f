"""From the command to the first answer, and from the signal to the exit."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from crowding import patience
from live_server import running_server

LONG = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}


def _assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


def test_a_server_starts_serves_finishes_what_runs_and_ends(tmp_path: Path) -> None:
    flags = ["--served-model-name=sea", "--served-model-name=ocean", "--api-key=secret", "--log-format=json", "--cors-origins=*"]
    with running_server(tmp_path, *flags) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200, "health answers while the model is being loaded"
        key = {"authorization": "Bearer secret"}
        if not server.is_ready():
            early = httpx.post(f"{server.url}/v1/completions", json=LONG, headers=key)
            assert early.status_code in (200, 503)
        server.wait_until_ready()
        assert "curl" in server.log
        processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert len(processes) >= 2
        assert not any("torch" in line for line in Path(f"/proc/{server.process.pid}/maps").read_text().splitlines())

        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            refused = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        models = httpx.get(f"{server.url}/v1/models", headers={**key, "origin": "http://page"})
        assert [card["id"] for card in models.json()["data"]] == ["sea", "ocean"]
        assert models.headers["access-control-allow-origin"] == "*"

        answers: list[httpx.Response] = []
        request = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{server.url}/v1/completions", json={**LONG, "model": "ocean"}, headers=key, timeout=60)
            )
        )
        request.start()
        _wait_for(lambda: server.metric("octavo_sequences_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        _wait_for(lambda: "stopping" in server.log)
        late = httpx.post(f"{server.url}/v1/completions", json=LONG, headers=key)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "server_draining")
        assert late.headers["connection"] == "close"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        request.join()
        assert answers[0].json()["model"] == "ocean"
        assert answers[0].json()["usage"]["completion_tokens"] == 60
        assert server.process.wait(10) == 0
        _assert_gone(processes)


def test_ctrl_c_on_an_idle_server_ends_it_within_five_seconds(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.wait_until_ready()
        processes = psutil.Process(server.process.pid).children(recursive=True)
        with httpx.Client(base_url=server.url) as idle:  # a connection kept open must not hold it up
            idle.get("/health")
            assert server.stop(signal.SIGINT, seconds=patience(5)) == 0
        assert "Traceback" not in server.log
        _assert_gone(processes)


def test_a_full_server_says_so_and_a_second_signal_ends_streams_with_an_error(tmp_path: Path) -> None:
    with running_server(tmp_path, "--grace-period", "60", "--max-pending-requests", "1") as server:
        server.wait_until_ready()
        body: dict[str, Any] = {**LONG, "max_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            refused = httpx.post(f"{server.url}/v1/completions", json=LONG)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused.headers["retry-after"] == "1"
            too_many = httpx.post(f"{server.url}/v1/completions", json={**LONG, "n": 2})
            assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
            server.process.send_signal(signal.SIGTERM)
            _wait_for(lambda: "stopping" in server.log)
            server.process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            rest = [line for line in lines if line]
        assert "shutting_down" in rest[-1]
        assert "told again to stop" in rest[-1]
        assert server.process.wait(10) == 128 + signal.SIGTERM
        took = time.monotonic() - signalled
        assert took < patience(2)


def test_a_signal_while_the_model_loads_ends_it_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(patience(5)) == 0


def _wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

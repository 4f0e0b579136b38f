"""Clients that take what they asked for slowly, or never: bounded memory, nothing lost, and no work for those that have stopped."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from live_server import RunningServer, running_server

BODY: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "stream": True}


def _ask(url: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which the request has been sent; the kernel takes little of the answer before it is read."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((parts.hostname, parts.port))
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n"
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + payload)
    return connection


def test_what_a_slow_reader_has_not_taken_is_merged_and_nothing_is_lost(server: RunningServer, http: httpx.Client) -> None:
    body = {**BODY, "max_tokens": 400, "logprobs": 20}
    with _ask(server.url, body) as connection:
        server._wait(lambda: server.metric("octavo_sequences_running") == 1, 10)
        server.wait_until_idle(60)
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    events = [json.loads(line[6:]) for line in received.split(b"\r\n") for line in line.split(b"\n") if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events]
    undisturbed = http.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]
    assert "".join(choice["text"] for choice in choices) == undisturbed["text"]
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    assert tokens == undisturbed["logprobs"]["tokens"]
    assert len(events) < 350


@pytest.fixture
def few_files() -> Iterator[None]:
    """What is started may have 200 files open, until it raises the limit itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_and_clients_that_take_nothing_are_no_trouble(tmp_path: Path, few_files: None) -> None:
    with running_server(tmp_path, "--send-timeout", "1", "--max-model-len", "4096") as server, ExitStack() as idle:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        server.wait_until_ready()
        parts = urlsplit(server.url)
        for _ in range(400):
            idle.enter_context(socket.create_connection((parts.hostname, parts.port)))
        assert httpx.get(f"{server.url}/health").status_code == 200
        with _ask(server.url, {**BODY, "max_tokens": 4000}):
            server._wait(lambda: server.metric("octavo_sequences_running") == 1, 10)
            server._wait(lambda: "client left" in server.log, 10)
            server.wait_until_idle(2)
        assert server.metric("octavo_generation_tokens_total") < 4000

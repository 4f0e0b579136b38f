"""One real server for all tests that only talk to it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from live_server import Guarded, RunningServer, running_server

from server.access.keys import add_key


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The default model, ready."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The default model behind keys."""
    directory = tmp_path_factory.mktemp("guarded")
    path = directory / "keys"
    limits: dict[str, dict[str, int]] = {"front": {}, "ops": {}, "few-requests": {"requests": 60}, "few-tokens": {"tokens": 600}}
    keys = {
        name: add_key(path, name, None, admin=name == "ops", requests=limit.get("requests"), tokens=limit.get("tokens"))
        for name, limit in limits.items()
    }
    with running_server(
        directory, "--api-keys-file", str(path), "--host", "0.0.0.0", "--isolate-keys", "--trust-request-chat-template"
    ) as running:
        running.wait_until_ready()
        yield Guarded(running, path, keys)


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The official client, as its users make it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """For what the official client hides."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client

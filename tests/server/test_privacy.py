"""What clients say stays between them and the model: not in the log unless asked for, and not on sockets that others may open."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from live_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
SECRET = "xyzzy-plugh-4711"
_SAID = [{"role": "user", "content": f"My password is {SECRET}."}]

BODIES: dict[str, Any] = {
    "a good one": {"messages": _SAID, "max_tokens": 2},
    "a stream": {"messages": _SAID, "max_tokens": 2, "stream": True},
    "half an object": json.dumps({"messages": _SAID})[:-1],
    "duplicate names": '{"messages": 1, "messages": "' + SECRET + '"}',
    "a wrong type": {"messages": SECRET},
    "a wrong role": {"messages": [{"role": "robot", "content": SECRET}]},
    "a part of another type": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}]},
    "stop strings": {"messages": _SAID, "stop": [SECRET] * 100},
    "too long a stop string": {"messages": _SAID, "stop": SECRET * 100},
    "template variables": {"messages": _SAID, "chat_template_kwargs": {"raise_exception": SECRET}, "max_tokens": 1},
    "a prompt without end": {"messages": [{"role": "user", "content": SECRET * 3000}]},
    "a user": {"messages": _SAID, "user": SECRET, "max_tokens": 1},
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_said_is_not_in_the_log(server: RunningServer, name: str) -> None:
    body = BODIES[name]
    content = body if isinstance(body, str) else json.dumps(body)
    before = len(server.log)
    answer = httpx.post(server.url + CHAT, content=content, headers={"x-request-id": "said-something"}, timeout=60)
    assert answer.status_code in (200, 400)
    server._wait(lambda: "said-something" in server.log[before:], 10)
    assert SECRET not in server.log[before:]


def test_prompts_and_answers_are_logged_when_asked_for(tmp_path: Path) -> None:
    with running_server(tmp_path, "--log-requests", "--log-format", "json") as server:
        server.wait_until_ready()
        answer = httpx.post(server.url + CHAT, json={"messages": _SAID, "max_tokens": 8, "temperature": 0}, timeout=60).json()
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    said = {line["message"].split(" of ")[0]: line["text"] for line in lines if " of chatcmpl-" in line["message"]}
    assert SECRET in said["prompt"]
    assert said["answer 0"] == answer["choices"][0]["message"]["content"]


def test_the_sockets_between_the_processes_are_this_users_alone(server: RunningServer) -> None:
    process = psutil.Process(server.process.pid)
    paths = {Path(connection.laddr) for connection in process.net_connections("unix") if connection.laddr}
    directories = {path.parent for path in paths if path.parent.name.startswith("octavo-")}
    assert directories
    for directory in directories:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == process.uids().real
    listening = [connection for one in (process, *process.children()) for connection in one.net_connections("inet")]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_what_is_kept_on_disk_is_this_users_alone(tmp_path: Path) -> None:
    kept = [tmp_path / "batches", tmp_path / "responses.sqlite"]
    with running_server(tmp_path, "--batch-dir", str(kept[0]), "--response-store", str(kept[1])):
        found = [path for path in tmp_path.rglob("*") if path.name != "server.log"]
        assert set(kept) <= set(found)
        assert not [path for path in found if path.is_file() and path.stat().st_mode & 0o077]

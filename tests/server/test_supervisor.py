"""`octavo serve --supervise`: a server that dies comes back on the same port."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
from live_server import running_server


def _named(process: psutil.Process, name: str) -> psutil.Process:
    (found,) = (child for child in process.children(recursive=True) if child.cmdline()[0].startswith(name))
    return found


def _has_ended(process: psutil.Process) -> bool:
    """Also one whose parent has ended too, and that process 1 has yet to take note of."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_server_is_started_again_and_no_connection_is_refused(tmp_path: Path) -> None:
    with running_server(tmp_path, "--supervise") as server:
        server.wait_until_ready()
        supervisor = psutil.Process(server.process.pid)
        first, engine = _named(supervisor, "octavo: api"), _named(supervisor, "octavo: engine")
        first.kill()
        began = time.monotonic()
        assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200, "the connection waits for the next server"
        server._wait(lambda: _has_ended(engine), 1)
        server._wait(server.is_ready, 60)
        print(f"ready again after {time.monotonic() - began:.1f} s")
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "Once", "max_tokens": 3}, timeout=60)
        assert answer.status_code == 200

        statuses: list[int] = []
        body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}
        running = threading.Thread(target=lambda: statuses.append(httpx.post(f"{server.url}/v1/completions", json=body).status_code))
        running.start()
        server._wait(lambda: server.metric("octavo_sequences_running") == 1, 10)
        processes = supervisor.children(recursive=True)
        assert server.stop(signal.SIGTERM) == 0
        running.join()
        assert statuses == [200], "SIGTERM went through, and what ran was finished"
        server._wait(lambda: all(map(_has_ended, processes)), 5)
        assert "starting it again" in server.log


def test_a_server_whose_supervisor_is_killed_drains_and_leaves(tmp_path: Path) -> None:
    with running_server(tmp_path, "--supervise") as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        server._wait(lambda: all(map(_has_ended, children)), 10)
        assert "stopped" in server.log


MORTAL = """
import os, sys, server.supervisor
from server.config import ServerConfig
server.supervisor._FIRST_PAUSE = 0.01
status = server.supervisor.supervise(ServerConfig())
{child}
sys.exit(status)
"""


def _supervise(child: str) -> subprocess.CompletedProcess[str]:
    script = MORTAL.format(child=f"if status is None: {child}")
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)


def test_a_server_that_dies_again_and_again_is_given_up_with_a_status_of_its_own() -> None:
    result = _supervise("os.kill(os.getpid(), 9)")
    assert result.returncode == 4
    assert result.stderr.count("(SIGKILL): starting it again") == 4
    assert "giving up" in result.stderr


def test_a_server_that_ends_by_intent_or_for_a_bad_setting_is_not_started_again() -> None:
    for status in (0, 2, 5, 143):
        result = _supervise(f"sys.exit({status})")
        assert (result.returncode, result.stderr) == (status, "")

"""`octavo top`, in a terminal of its own, watching the real server."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from door import door, free_port
from live_server import Guarded, RunningServer

from engine.snapshot import SequenceView
from engine.stats import EngineStats
from server.top.frame import sparkline
from server.top.state import History, State

_TOP = [sys.executable, "-m", "server.cli", "top"]


class Terminal:
    """A command in a terminal of 80 columns and 24 lines."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Returns once this is shown, after what was waited for before."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, f"not within {seconds} s: {text}\n{self.shown[-3000:]}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self._ours, 1 << 16).decode(errors="replace"))
        self.shown = self.shown.partition(text)[2]

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextmanager
def _terminal(*arguments: str) -> Iterator[Terminal]:
    terminal = Terminal([*_TOP, *arguments])
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_server_that_goes_away_is_waited_for_and_q_quits(server: RunningServer) -> None:
    port = free_port()
    with _terminal(f"127.0.0.1:{port}", "--interval", "0.5") as terminal:
        terminal.wait_for("no server answers")
        with door(port, server.url):
            terminal.wait_for("SmolLM2-135M-Instruct  ready")
            terminal.wait_for("KV blocks")
        terminal.wait_for("trying again: no server answers")
        with door(port, server.url):
            terminal.wait_for("SmolLM2-135M-Instruct  ready")
            terminal.press("q")
            assert terminal.process.wait(5) == 0


def test_one_picture_shows_a_running_request_with_its_speed_and_fits_the_terminal(server: RunningServer, http: httpx.Client) -> None:
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "looked-at"}) as stream:
        pieces = stream.iter_bytes()
        next(pieces)
        environment = {**os.environ, "COLUMNS": "80", "LINES": "24"}
        done = subprocess.run([*_TOP, server.url, "--once"], env=environment, capture_output=True, text=True, timeout=30, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "/900" in line)
    assert "decode" in row
    assert float(row.split()[-2]) > 0
    assert "▀" in done.stdout


def test_no_server_and_a_key_that_is_no_admins_are_told_in_one_sentence(guarded: Guarded) -> None:
    for arguments, said in (
        ([f"http://127.0.0.1:{free_port()}"], "no server answers"),
        ([guarded.url.replace("0.0.0.0", "127.0.0.1"), "--api-key", guarded.keys["front"]], "admin's key"),
    ):
        done = subprocess.run([*_TOP, *arguments, "--once"], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1


def _state(generated: int, restarts: int = 0) -> State:
    sequence = SequenceView("a", "decode", 4, 0, 4 + generated, generated, 100, 2, 0, "")
    stats = EngineStats(generation_tokens_total=generated, steps_total=generated, model_seconds_total=0.01 * generated)
    return State("ready", "m", restarts, 8, stats, [sequence], [0, 0, -1])


def test_rates_are_of_the_last_seconds_and_begin_anew_with_an_engine() -> None:
    history = History()
    history.add(_state(0), 10.0)
    assert history.rates.generated == 0
    history.add(_state(50), 11.0)
    assert history.rates.generated == 50
    assert history.rates.sequences == {"a": 50}
    assert round(history.rates.part_ms["model"], 6) == 10
    for second in range(12, 20):
        history.add(_state(50), float(second))
    assert history.rates.generated == 0
    assert history.rates.part_ms == {}
    history.add(_state(3, restarts=1), 20.0)
    assert history.rates.generated == 0


def test_a_sparkline_is_as_high_as_its_largest_value() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 2]) == "▁▅█"

"""A real server in a process of its own, for tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

# Small, so that a few may run on one machine.
FLAGS = ("--port", "0", "--max-num-seqs", "32", "--kv-cache-memory", "192M", "--max-model-len", "1024")
_START_SECONDS = 120.0


@dataclass
class RunningServer:
    """One `octavo serve`."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path
    started: float

    def __post_init__(self) -> None:
        # Not httpx.get: it makes a TLS context each time, which costs what the model needs to load.
        self._probe = httpx.Client(base_url=self.url, verify=False)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def is_ready(self) -> bool:
        return self._probe.get("/ready").status_code == 200

    def wait_until_ready(self) -> None:
        """Returns when requests are served. Raises AssertionError with the log when that does not come."""
        self._wait(lambda: self.process.poll() is not None or self.is_ready(), _START_SECONDS)
        assert self.process.poll() is None, self.log

    def metric(self, name: str) -> float:
        """One sample of /metrics, by its name and labels as they are written there."""
        for line in self._probe.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise KeyError(name)

    def wait_until_idle(self, seconds: float) -> None:
        """Returns when no sequence runs or waits. Raises AssertionError when some still do after `seconds`."""
        self._wait(lambda: self.metric("octavo_sequences_running") + self.metric("octavo_sequences_waiting") == 0, seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 15.0) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def _wait(self, condition: object, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, f"not within {seconds} s:\n{self.log}"
            time.sleep(0.1)


@dataclass
class Guarded:
    """A server with a file of keys."""

    server: RunningServer
    path: Path  # of the file
    keys: dict[str, str]  # by the holder's name

    @property
    def url(self) -> str:
        return self.server.url


@contextmanager
def running_server(directory: Path, *flags: str) -> Iterator[RunningServer]:
    """Starts a server and yields it as soon as it listens; stops it at the end."""
    log_path = directory / "server.log"
    started = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "server.cli", "serve", *FLAGS, *flags], stdout=log, stderr=log)
    try:
        while (found := re.search(r"listening on (https?://\S+),", log_path.read_text())) is None:
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < started + 30, log_path.read_text()
            time.sleep(0.02)
        yield RunningServer(process, found[1], log_path, started)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

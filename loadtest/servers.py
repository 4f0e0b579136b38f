"""A server for as long as it is measured, Octavo's or another's."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PORT = 8655


def octavo(model: str | None, max_num_seqs: int, port: int = PORT, others: Sequence[str] = ()) -> list[str]:
    """The command that serves a model, none being the default one."""
    command = [sys.executable, "-m", "server.cli", "serve", *([model] if model else [])]
    return [*command, "--port", str(port), "--max-num-seqs", str(max_num_seqs), "--log-level", "warning", *others]


@contextmanager
def running(command: Sequence[str], url: str, patience: float = 120.0) -> Iterator[tuple[psutil.Process, float]]:
    """The process and the seconds until `url` answered with 200. Raises SystemExit when it does not in `patience` seconds."""
    if answers(url):
        raise SystemExit(f"another server answers at {url}, and would be measured instead: stop it first")
    started = time.perf_counter()
    process = psutil.Popen(command, stdout=sys.stderr)
    try:
        while not answers(url):
            if process.poll() is not None or time.perf_counter() - started > patience:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            time.sleep(0.01)
        yield process, time.perf_counter() - started
    finally:
        stop(process)


def stop(process: psutil.Process, patience: float = 30.0) -> None:
    """Ends it, and whatever it has started that outlives it."""
    with suppress(psutil.NoSuchProcess):
        children = process.children(recursive=True)
        process.terminate()
        psutil.wait_procs([process], patience)
        left = [one for one in (process, *children) if one.is_running()]
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, patience)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def engine_of(process: psutil.Process) -> psutil.Process:
    """The engine process of a server of ours."""
    return next(child for child in process.children() if child.cmdline()[0].startswith("octavo: engine"))


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far, to the nanosecond: the usual counts of it are of ticks of 10 ms."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9

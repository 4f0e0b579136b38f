"""Runs the checks of one application and prints a verdict on each.

It uses the standard library alone, as it runs in the application's environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODEL = "SmolLM2-135M-Instruct"  # the default model
# What it answers well.
QUESTION = "What is the capital of France? Answer briefly."
ANSWER = "Paris"

_checks: list[Callable[[], Any]] = []


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Marks a function, or a coroutine function, whose name says what it checks."""
    _checks.append(function)
    return function


def server_url() -> str:
    """The first argument of the command line: the server's address, with /v1."""
    return sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"


def run() -> None:
    """Runs the checks in the order of the file, and ends the process: with status 1 if one of them raised."""
    failed = 0
    loop = asyncio.Runner()  # one for all, as clients keep their connections
    for function in _checks:
        name = function.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            if inspect.iscoroutinefunction(function):
                loop.run(function())
            else:
                function()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name}", flush=True)
        else:
            print(f"ok      {name}  ({time.monotonic() - started:.1f} s)", flush=True)
    loop.close()
    print(f"{len(_checks) - failed} of {len(_checks)} checks passed", flush=True)
    sys.exit(1 if failed else 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[Any], log: Path, is_up: Callable[[], bool], seconds: float, **environment: str) -> Iterator[None]:
    """A process beside the checks. Raises AssertionError with the end of its log when it is not up within `seconds`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + seconds
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{command[0]} did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

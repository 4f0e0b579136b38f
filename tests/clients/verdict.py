"""Runs the checks of one application and prints a verdict on each. The standard library alone, as each runs in its application's environment."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
import traceback
from collections.abc import Callable
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
    for function in _checks:
        name = function.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(function())
            else:
                function()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name}", flush=True)
        else:
            print(f"ok      {name}  ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{len(_checks) - failed} of {len(_checks)} checks passed", flush=True)
    sys.exit(1 if failed else 0)

"""How crowded the machine is, for the few tests that bound how long something takes."""

from __future__ import annotations

import time

_SAMPLE = 0.05  # seconds of processor time


def patience(seconds: float) -> float:
    """What takes `seconds` on an idle machine may take so long on this one now: a busy loop shows how much it is held up."""
    began, until = time.perf_counter(), time.thread_time() + _SAMPLE
    while time.thread_time() < until:
        pass
    return seconds * max(1.0, (time.perf_counter() - began) / _SAMPLE)

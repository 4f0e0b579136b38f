"""What this machine can do at this moment, by fixed work that has nothing of ours in it: the unit in which speeds can be compared.

A machine that is shared, or another of the same kind, is slower in both what it computes and what it reads; a figure of ours over that of
the same moment stays the same unless our code has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

SECONDS = 0.2
ROWS, FEATURES = 256, 1024
MEMORY_BYTES = 96 << 20  # about the weights that a token of the default model reads; no cache holds them


def compute() -> float:
    """GFLOP/s of float32 products through PyTorch, with all its threads."""
    a, b = torch.ones(ROWS, FEATURES), torch.ones(FEATURES, FEATURES)
    return 2 * ROWS * FEATURES * FEATURES / 1e9 / _seconds_of(lambda: a @ b)


def memory() -> float:
    """GB/s of reading, likewise."""
    words = torch.ones(MEMORY_BYTES // 4)
    return MEMORY_BYTES / 1e9 / _seconds_of(words.sum)


CALIBRATIONS = {"compute": compute, "memory": memory}


def _seconds_of(work: Callable[[], object]) -> float:
    """Of one call, at the mean of as many as fit."""
    work()
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        work()
        calls += 1
    return elapsed / calls

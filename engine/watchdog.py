"""Watchdog: notices an engine that has work and finishes no step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LOOKS_PER_LIMIT = 20  # it is found out within a twentieth of the limit


class Watchdog:
    """Calls `bite` once when `limit` seconds of `busy` have passed without `pet`.

    Only time in which this process ran itself is counted. When the machine slept, or all its processes were stopped, a look comes late,
    and what it missed says nothing of the engine.
    """

    def __init__(self, limit: float, busy: Callable[[], bool], bite: Callable[[], None]) -> None:
        self._limit = limit  # seconds
        self._busy = busy
        self._bite = bite
        self._silence = 0.0  # seconds

    def pet(self) -> None:
        """A step has finished, or there is an engine that had no time for one yet."""
        self._silence = 0.0

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        period = self._limit / _LOOKS_PER_LIMIT
        last = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._silence = self._silence + min(now - last, 2 * period) if self._busy() else 0.0
            last = now
            if self._silence >= self._limit:
                self._silence = 0.0
                self._bite()

"""Suspects: which requests a new engine is given at once, and which one by one, because engines died while they were under way.

Whoever was running when an engine died may have killed it, and nobody knows who. So after a second death requests that have gained
nothing are tried, one after the other: each until it gains a token, beside none but those that have. If the engine dies again, the
one on trial is the cause; the others were only near it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.request_stream import RequestStream

DEATHS_UNTIL_TRIAL = 2  # in so many deaths, without a token between them, a request becomes a suspect; the next one ends it


class Suspects:
    """Holds the requests back that must wait while suspects are tried."""

    def __init__(self) -> None:
        self._on_trial: RequestStream[Any] | None = None
        self._held: deque[RequestStream[Any]] = deque()

    def after_death(self, under_way: Iterable[RequestStream[Any]]) -> RequestStream[Any] | None:
        """Count a death for those that were under way. Returns the one that died alone once too often, which must not run again."""
        convict: RequestStream[Any] | None = None
        if self._on_trial is not None:
            self._on_trial.deaths_without_progress += 1
            convict = self._on_trial
        else:
            for stream in under_way:
                stream.deaths_without_progress += 1
        self._on_trial = None
        self._held.clear()
        return convict

    def sort(self, under_way: Iterable[RequestStream[Any]]) -> list[RequestStream[Any]]:
        """Those that a new engine is given at once: all where none is suspected, or else the first suspect alone."""
        streams = sorted(under_way, key=lambda stream: stream.deaths_without_progress < DEATHS_UNTIL_TRIAL)  # suspects first
        if not streams or streams[0].deaths_without_progress < DEATHS_UNTIL_TRIAL:
            return streams
        self._on_trial = streams[0]
        self._held.extend(streams[1:])
        return streams[:1]

    def hold(self, stream: RequestStream[Any]) -> bool:
        """Whether a request that comes now must wait until the trials are over."""
        if self._on_trial is None:
            return False
        self._held.append(stream)
        return True

    def acquit(self, stream: RequestStream[Any]) -> list[RequestStream[Any]]:
        """A request has gained a token, or has ended. Returns those that may run now."""
        stream.deaths_without_progress = 0
        if stream is not self._on_trial:
            return []
        self._on_trial = None
        held = [other for other in self._held if not other.done]
        self._held.clear()
        return self.sort(held)

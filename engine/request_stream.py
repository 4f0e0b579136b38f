"""RequestStream: one request's outputs, on their way to whoever asked."""

from __future__ import annotations

import asyncio
from typing import Any, Generic

from engine.errors import OctavoError
from engine.processor import Output, Processor


class RequestStream(Generic[Output]):
    """A request's outputs as they come. What a slow reader has not taken is merged into one, so nothing piles up.

    Leaving before the end: call `abort`, or `aclose`. Iterating raises EngineDeadError when the request cannot go on,
    RequestFailedError when it is what ends the engine, and RequestTimeoutError when it took too long.
    """

    def __init__(self, processor: Processor[Output], abort: Any) -> None:
        self.processor = processor
        self.deaths_without_progress = 0  # of engines, since its latest token
        self.timer: asyncio.TimerHandle | None = None  # of its deadline
        self._abort = abort
        self._pending: Output | None = None
        self._error: OctavoError | None = None
        self._done = False
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        """Nothing more will be put."""
        return self._done or self._error is not None or self.processor.finished

    def put(self, output: Output) -> None:
        self._pending = output if self._pending is None else self.processor.merge(self._pending, output)
        if output.finished:
            self._cancel_timer()
        self._news.set()

    def fail(self, error: OctavoError) -> None:
        self._error = error
        self._cancel_timer()
        self._news.set()

    def __aiter__(self) -> RequestStream[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._done:
            raise StopAsyncIteration
        while self._pending is None:
            if self._error is not None:
                self._done = True
                raise self._error
            self._news.clear()
            await self._news.wait()
        output, self._pending = self._pending, None
        self._done = output.finished
        return output

    def abort(self) -> None:
        """Stop the work; harmless when it has ended."""
        self._done = True
        self._cancel_timer()
        self._abort(self)

    async def aclose(self) -> None:
        self.abort()

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

"""Responses that are made while nobody waits: each is a task that belongs to the server, and no client's leaving ends it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from server.observability.logs import logger
from server.observability.record import RequestRecord
from server.response_run import ResponseRun

# Streams that have ended and can still be read again, from wherever a client lost its connection.
_KEPT_STREAMS = 32


class BackgroundRun:
    """One response in the making, and the events of its stream so far if it has one."""

    def __init__(self, run: ResponseRun, record: RequestRecord, streams: bool) -> None:
        self.run = run
        self.streams = streams
        self.is_over = False
        self._record = record
        self._frames: list[bytes] = []  # the place of each is its sequence_number
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, when_over: Callable[[], None]) -> None:
        self._task = asyncio.create_task(self._work(when_over))

    async def cancel(self) -> None:
        """Stop it, unless it is complete and only has to be stored. Returns when it is over."""
        assert self._task is not None
        if self.run.response["status"] in ("queued", "in_progress"):
            self._task.cancel()
        await asyncio.wait((self._task,))

    async def frames(self, starting_after: int = -1) -> AsyncIterator[bytes]:
        """The events after the one with this sequence number; those to come, as they come."""
        place = starting_after + 1
        while True:
            if due := self._frames[place:]:
                place += len(due)
                yield b"".join(due)
            elif self.is_over:
                return
            else:
                await self._news.wait()

    async def _work(self, when_over: Callable[[], None]) -> None:
        try:
            async for frames in self.run.stream():
                if self.streams:
                    self._frames += frames
                    self._wake()
        except asyncio.CancelledError:
            await self.run.cancel()
        finally:
            self.is_over = True
            when_over()
            self._record.end()
            self._wake()
            response = self.run.response
            logger.info("background response %s %s", response["id"], response["status"])

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class BackgroundRuns:
    """Those that run, and the streams of some that did."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], BackgroundRun] = {}
        self._ended: OrderedDict[tuple[str, str], BackgroundRun] = OrderedDict()

    async def start(self, owner: str, background: BackgroundRun) -> None:
        """Let it run. Its places are given back when it is over."""
        await background.run.begin()
        key = (owner, background.run.response["id"])
        self._running[key] = background
        background.start(when_over=lambda: self._end(key))

    def running(self, owner: str, response_id: str) -> BackgroundRun | None:
        """The response as it is being made."""
        return self._running.get((owner, response_id))

    def stream(self, owner: str, response_id: str) -> BackgroundRun | None:
        """One whose stream can be read."""
        found = self._running.get((owner, response_id)) or self._ended.get((owner, response_id))
        return found if found is not None and found.streams else None

    def forget(self, owner: str, response_id: str) -> None:
        """Keep no stream of a deleted response."""
        self._ended.pop((owner, response_id), None)

    def _end(self, key: tuple[str, str]) -> None:
        background = self._running.pop(key)
        if background.streams:
            self._ended[key] = background
            if len(self._ended) > _KEPT_STREAMS:
                self._ended.popitem(last=False)


def background_record(record: RequestRecord) -> RequestRecord:
    """A record for work that goes on after its request has been answered."""
    return RequestRecord(
        record.request_id, record.method, record.path, record.caller, record.allowance, body_size=record.body_size, hex=record.hex
    )

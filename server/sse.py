"""Server-sent events: the framing, what keeps idle connections open, errors after the first byte, clients that leave.

Written by hand on ASGI rather than with sse-starlette: docs/decisions/sse.md has the measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import as_api_error, is_foreseen
from server.observability.logs import logger
from server.observability.record import SCOPE_KEY, RequestRecord

DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event. `data` is JSON, which has no line breaks of its own."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """One event of a kind, for the APIs whose events have kinds."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventStream(Response):
    """An ASGI response that sends the frames of an async iterator as they come.

    Frames are whole events. Should the iterator raise, the stream ends with an event that holds the error object. When the
    client goes away the iterator is closed.
    """

    def __init__(self, frames: AsyncIterator[bytes], keepalive: float) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self.frames = frames
        # x-accel-buffering: nginx would hold events back to fill a buffer.
        self.keepalive = keepalive  # seconds; 0: never
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope[SCOPE_KEY]
        self._last_sent = time.monotonic()
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sender = asyncio.ensure_future(self._send_frames(send, record))
        watcher = asyncio.ensure_future(self._watch(receive, send, record.dialect.keepalive))
        try:
            await asyncio.wait((sender, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not sender.done():
                raise ClientDisconnect
            await sender
        finally:
            for task in (sender, watcher):
                task.cancel()
            await asyncio.gather(sender, watcher, return_exceptions=True)

    async def _send_frames(self, send: Send, record: RequestRecord) -> None:
        try:
            async with aclosing(self.frames) as frames:  # type: ignore[type-var]
                async for frame in frames:
                    self._last_sent = time.monotonic()
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        except Exception as error:
            if not is_foreseen(error):
                logger.error("request %s failed in mid-stream", record.request_id, exc_info=error)
            answer = as_api_error(error, record.request_id)
            record.error = answer.message
            await send({"type": "http.response.body", "body": record.dialect.error_event(answer), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, send: Send, filler: bytes) -> None:
        """Returns when the client has gone. Until then, fills silences."""
        gone = asyncio.ensure_future(_disconnection(receive))
        try:
            while True:
                wait = None if not self.keepalive else max(0.01, self._last_sent + self.keepalive - time.monotonic())
                done, _ = await asyncio.wait((gone,), timeout=wait)
                if done:
                    return
                if time.monotonic() - self._last_sent >= self.keepalive:
                    self._last_sent = time.monotonic()
                    await send({"type": "http.response.body", "body": filler, "more_body": True})
        finally:
            gone.cancel()


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

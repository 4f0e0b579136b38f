"""uvicorn's HTTP protocol, with OpenAI's error object for what is no HTTP, and a time in which headers must have arrived."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError
from server.record import HAS_ARRIVED


class HttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn bounds the time between requests; this one also the time before the first and within the headers."""

    receive_timeout: float = 0.0  # seconds; 0: for ever
    _in_headers = False
    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_headers_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Nearly always the headers came in one piece, and need no timer.
        if self._in_headers and self._headers_timer is None:
            self._expect_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._cancel_headers_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope[HAS_ARRIVED] = True  # type: ignore[literal-required]

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed never reaches the app, so it is answered here, and the connection closed."""
        error = ApiError(400, f"the request is not valid HTTP: {msg}", code="invalid_http")
        body = msgspec.json.encode(error.body())
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: req_{uuid.uuid4().hex}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _expect_headers(self) -> None:
        if self.receive_timeout:
            self._headers_timer = self.loop.call_later(self.receive_timeout, self._give_up_on_headers)

    def _cancel_headers_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _give_up_on_headers(self) -> None:
        self._headers_timer = None
        # While an answer is on its way the next request's headers may wait, unread, in a pipeline.
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


def protocol_with(receive_timeout: float) -> type[HttpProtocol]:
    """The protocol class for one server's settings: uvicorn makes the instances, and takes no arguments for them."""
    return type("HttpProtocol", (HttpProtocol,), {"receive_timeout": receive_timeout})

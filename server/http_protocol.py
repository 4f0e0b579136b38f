"""uvicorn's HTTP protocol, with OpenAI's error object for what is no HTTP, and bounds on headers: their time, size and number."""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.config import ServerConfig
from server.errors import ApiError
from server.observability.record import HAS_ARRIVED

LONGEST_URL = 8192  # bytes


class HttpProtocol(HttpToolsProtocol):
    """One connection. uvicorn bounds the time between requests; this one also the time before the first and within the headers."""

    receive_timeout: float = 0.0  # seconds; 0: for ever
    max_header_size: int = 0  # bytes, with the request line
    max_header_count: int = 0
    _unparsed = 0  # bytes since the parser last had something to tell: part of a request line, of headers, of trailers, ...
    _refusal: ApiError | None = None  # why the parser was stopped
    _in_headers = False
    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_headers_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self.max_header_size and not self.transport.is_closing():
            self._refusal = _too_large_headers()
            self.send_400_response("")
        # Nearly always the headers came in one piece, and need no timer.
        if self._in_headers and self._headers_timer is None:
            self._expect_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > LONGEST_URL:
            self._refuse(ApiError(414, f"the URL is longer than {LONGEST_URL} bytes", code="invalid_http"))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.max_header_count:
            self._refuse(_too_large_headers())

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._unparsed = 0
        self._cancel_headers_timer()
        if sum(len(name) + len(value) for name, value in self.headers) > self.max_header_size:
            self._refuse(_too_large_headers())
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(ApiError(400, "the request is not valid HTTP: its version must be 1.0 or 1.1", code="invalid_http"))
        hosts = [value for name, value in self.headers if name == b"host"]
        # Proxies and servers that choose differently among several hosts can be played off against each other (RFC 9112, 3.2).
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            self._refuse(ApiError(400, "the request is not valid HTTP: it needs one Host header", code="invalid_http"))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()
        self.scope[HAS_ARRIVED] = True  # type: ignore[literal-required]

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn would advise to install a library for WebSockets, which nothing here speaks: the request is answered as it stands."""

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed never reaches the app, so it is answered here, and the connection closed."""
        error = self._refusal or ApiError(400, f"the request is not valid HTTP: {msg}", code="invalid_http")
        body = msgspec.json.encode(error.body())
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: req_{uuid.uuid4().hex}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _refuse(self, error: ApiError) -> NoReturn:
        """Stop the parser, from one of its callbacks; what it then raises ends in `send_400_response`."""
        self._refusal = error
        raise ValueError(error.message)

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


def _too_large_headers() -> ApiError:
    return ApiError(431, "the request's headers are too many or too long", code="headers_too_large")


def protocol_with(config: ServerConfig) -> type[HttpProtocol]:
    """The protocol class for one server's settings: uvicorn makes the instances, and takes no arguments for them."""
    return type(
        "HttpProtocol",
        (HttpProtocol,),
        {name: getattr(config, name) for name in ("receive_timeout", "max_header_size", "max_header_count")},
    )

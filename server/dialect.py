"""How errors and silences are put: OpenAI's way, or Anthropic's under /v1/messages.

The SDKs make their exception classes from the status, and Anthropic's has statuses of its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from starlette.responses import Response

from server.errors import ApiError


class Dialect(Protocol):
    """The form of what every route may have to say."""

    keepalive: bytes  # a frame that fills a silence in a stream
    id_header: bytes | None  # a further header for the request's id

    def error_response(self, error: ApiError) -> Response:
        """The answer that is an error."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """The last frame of a stream that an error ends."""
        ...


class OpenAI:
    keepalive = b": keep-alive\n\n"
    id_header: bytes | None = None

    def error_response(self, error: ApiError) -> Response:
        return Response(msgspec.json.encode(error.body()), error.status, error.headers, media_type="application/json")

    def error_event(self, error: ApiError) -> bytes:
        return b"data: " + msgspec.json.encode(error.body()) + b"\n\n"


class Anthropic:
    keepalive = b'event: ping\ndata: {"type":"ping"}\n\n'
    id_header: bytes | None = b"request-id"

    # Statuses that are others there, and the type of error that goes with each.
    _statuses = {408: 504, 503: 529}  # noqa: RUF012
    _types = {  # noqa: RUF012
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        504: "timeout_error",
        529: "overloaded_error",
    }

    def error_response(self, error: ApiError) -> Response:
        return Response(msgspec.json.encode(self._body(error)), self._status(error), error.headers, media_type="application/json")

    def error_event(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + msgspec.json.encode(self._body(error)) + b"\n\n"

    def _status(self, error: ApiError) -> int:
        return self._statuses.get(error.status, error.status)

    def _body(self, error: ApiError) -> dict[str, Any]:
        kind = self._types.get(self._status(error), "invalid_request_error" if error.status < 500 else "api_error")
        details = {} if error.code is None else {"details": {"error_code": error.code}}
        return {"type": "error", "error": {"type": kind, "message": error.message, **details}}


_OPENAI, _ANTHROPIC = OpenAI(), Anthropic()


def dialect_of(path: str) -> Dialect:
    """The dialect of whoever calls this path."""
    return _ANTHROPIC if path.startswith("/v1/messages") else _OPENAI

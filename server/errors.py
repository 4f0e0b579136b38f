"""OpenAI's error object, and which exception becomes which status.

The SDK makes its exception classes from the status: 400 BadRequestError, 401 AuthenticationError, 404 NotFoundError, 429
RateLimitError, 500 and above InternalServerError.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from engine.errors import EngineDeadError, InvalidRequestError, OverloadedError, RequestFailedError, RequestTimeoutError

_LONGEST_MESSAGE = 1000  # characters: it may quote what the client sent


class ApiError(Exception):
    """An answer that is an error. `message` is read by the client's user."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + " ..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """OpenAI's class of error, by the status."""
        if self.status >= 500:
            return "server_error"
        return {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error"
        )

    def body(self) -> dict[str, Any]:
        """The error object, in its envelope."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def as_api_error(error: BaseException, request_id: str) -> ApiError:
    """What the client is told of an exception. One that nobody foresaw says only where in the log it is found."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, OverloadedError):
        return ApiError(429, str(error), code="server_overloaded", headers={"retry-after": "1"})
    if isinstance(error, RequestTimeoutError):
        # The SDK repeats a 408 unless it is told not to: the work would be done again for an answer that is late already.
        return ApiError(408, str(error), code="timeout", headers={"x-should-retry": "false"})
    if isinstance(error, RequestFailedError):
        return ApiError(500, str(error), code="generation_failed", headers={"x-should-retry": "false"})
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead")
    return ApiError(500, f"internal error; the log has its cause under request id {request_id}", code="internal_error")


def is_foreseen(error: BaseException) -> bool:
    """Whether an exception has an answer of its own, so that the log needs no traceback."""
    return isinstance(error, ApiError | InvalidRequestError | OverloadedError | RequestTimeoutError | RequestFailedError | EngineDeadError)


def http_error(status: int, detail: str, method: str, path: str, headers: dict[str, str] | None = None) -> ApiError:
    """The error of a route that does not exist, or not for this method."""
    path = path[:200]
    if status == HTTPStatus.NOT_FOUND:
        return ApiError(404, f"there is no {method} {path} here", code="unknown_url", headers=headers)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (headers or {}).get("allow") or (headers or {}).get("Allow") or "another method"
        return ApiError(405, f"{method} is not allowed on {path}: use {allowed}", code="method_not_allowed", headers=headers)
    return ApiError(status, detail, headers=headers)


def unsupported(param: str, message: str) -> ApiError:
    """A parameter that is known and that ignoring would change the answer."""
    return ApiError(400, message, param=param, code="unsupported_parameter")

"""Admission control: a bound on what waits, so that overload is told at once instead of growing a queue that nobody sees the end of."""

from __future__ import annotations

from engine.errors import OverloadedError


class Admission:
    """Counts the requests that wait, which is until their first token comes, and refuses new ones beyond the bounds.

    One that has been let in is never put out again. None is no bound.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._waiting: dict[str, int] = {}  # prompt tokens by request id
        self._num_tokens = 0

    def enter(self, request_id: str, num_tokens: int) -> None:
        """A request begins to wait. Raises OverloadedError when too many do; when none does, any is let in."""
        if self._max_requests is not None and len(self._waiting) >= self._max_requests:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting, which is as many as may: try again in a moment")
        if self._waiting and self._max_tokens is not None and self._num_tokens + num_tokens > self._max_tokens:
            message = f"requests with {self._num_tokens} prompt tokens are waiting; with these {num_tokens} it would be more than may"
            raise OverloadedError(f"{message}, {self._max_tokens}: try again in a moment")
        self._waiting[request_id] = num_tokens
        self._num_tokens += num_tokens

    def leave(self, request_id: str) -> None:
        """A request has its first token, or has ended; harmless when it had left before."""
        self._num_tokens -= self._waiting.pop(request_id, 0)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

"""From a line of a batch to its answer: through the same app, and so the same checks, as a request that comes over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from server.batches.lines import BatchLine
from server.observability.record import BATCH_OWNER

_RETRIED = (429, 503)  # too much to do at the moment, or a server that starts, sleeps or stops: no fault of the request
_SECONDS_BETWEEN_TRIES = 1.0


class Dispatcher:
    """Sends requests to the app, as those of `owner`, behind all that clients wait for."""

    def __init__(self, app: ASGIApp, owner: str) -> None:
        async def in_batch(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, BATCH_OWNER: owner}, receive, send)

        transport = httpx.ASGITransport(app=in_batch, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None)

    async def answer(self, line: BatchLine) -> dict[str, Any]:
        """The line's `response` in OpenAI's shape: status_code, request_id, body. It is tried for as long as the server has no time."""
        content = msgspec.json.encode(line.body)
        while True:
            response = await self._client.post(line.url, content=content, headers={"content-type": "application/json"})
            if response.status_code not in _RETRIED:
                break
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
        # As it was sent: decoding and encoding again would cost time and could change numbers.
        return {"status_code": response.status_code, "request_id": response.headers["x-request-id"], "body": msgspec.Raw(response.content)}

    async def aclose(self) -> None:
        await self._client.aclose()


def result_line(custom_id: str, result_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None = None) -> bytes:
    """One line of an output or error file, its line break included."""
    return msgspec.json.encode({"id": result_id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"

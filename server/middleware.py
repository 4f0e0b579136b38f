"""What surrounds every request: its id, the key check, the last resort for errors, its log line and its metrics.

Pure ASGI, because a wrapper that reads the body or the response would cost every streamed token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.caller import Caller
from server.access.keys import KeyRing
from server.access.rate_limits import RateLimits
from server.config import ServerConfig
from server.errors import as_api_error, http_error, is_foreseen
from server.observability.logs import logger
from server.observability.record import BATCH_OWNER, RequestRecord, new_record
from server.routes import admin, debug, page

# A browser sends no key before a page has asked for one, and the page's files hold no secrets.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version"}) | page.PATHS

Observer: TypeAlias = Callable[[RequestRecord, float], None]

_CLOSE = (b"connection", b"close")  # whoever keeps connections, sends the next request to another server


class RequestMiddleware:
    """Gives each request a RequestRecord and, whatever happens, an answer."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, keys: KeyRing, is_draining: Callable[[], bool], observers: Sequence[Observer]
    ) -> None:
        """`observers` are called when a request has ended, with the time of that."""
        self.app = app
        self.keys = keys
        self.limits = RateLimits(config)
        self.is_draining = is_draining
        self.observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = new_record(scope)  # type: ignore[arg-type]
        names = (b"x-request-id", record.dialect.id_header)
        id_headers = [(name, record.request_id.encode("latin-1")) for name in names if name is not None]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *id_headers, *record.allowance.headers()]
                if self.is_draining():
                    message["headers"].append(_CLOSE)
            await send(message)

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn, whose scope still says HEAD, sends the headers alone
        try:
            self._let_in(scope, record)
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            record.client_left = True
        except Exception as error:
            await self._answer_error(error, record, scope, receive, send_with_id)
        finally:
            record.end()
            ended = time.perf_counter()
            for observe in self.observers:
                observe(record, ended)

    def _let_in(self, scope: Scope, record: RequestRecord) -> None:
        """Raises ApiError 401 for a key that is missing or wrong, 403 for one that may not do this, and 429 for one request too many."""
        if scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return
        if scope["path"] in admin.PATHS:
            if not self.keys.knows_admins:
                raise http_error(404, "", scope["method"], scope["path"])
            record.caller = self.keys.identify_admin(scope["headers"])
            return
        if scope["path"] in debug.PATHS and (self.keys.asks_for_keys or self.keys.knows_admins):
            record.caller = self.keys.identify_admin(scope["headers"])
            return
        if BATCH_OWNER in scope:
            # Whose it is was asked when the batch came. It waits for all others, so no limit per minute holds it back.
            record.caller, record.batch_owner = Caller(), scope[BATCH_OWNER]
            return
        record.caller = self.keys.identify(scope["headers"])
        if scope["method"] == "POST":
            record.allowance = self.limits.of(record.caller, (scope.get("client") or ("",))[0])
            record.allowance.take("requests", 1)

    async def _answer_error(self, error: Exception, record: RequestRecord, scope: Scope, receive: Receive, send: Any) -> None:
        if not is_foreseen(error):
            logger.error("request %s failed", record.request_id, exc_info=error)
        if record.status is not None:
            # Half an answer is out. Only closing the connection tells the client that it is not whole.
            raise error
        answer = as_api_error(error, record.request_id)
        record.error = answer.message
        await record.dialect.error_response(answer)(scope, receive, send)

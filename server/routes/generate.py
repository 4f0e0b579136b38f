"""What the generating endpoints do alike: read the body, say whose it is, answer a client that waits."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response

from server.access.keys import key_in
from server.generation import Terms
from server.observability.record import record_of
from server.presence import while_connected
from server.protocol.body import RequestBody, check_content_type, parse_body, read_body
from server.protocol.embeddings import PooledBody
from server.protocol.fate import Parameter
from server.protocol.sampling import SamplingBody
from server.service import Service

Body = TypeVar("Body", bound=RequestBody)

# Lines of batches wait for all requests of clients that ask for no larger one.
_BATCH_PRIORITY = 1 << 20


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def body_of(request: Request, model: type[Body], table: dict[str, Parameter]) -> Body:
    """The validated body of a request. Raises ApiError 400, 408 or 413."""
    service = service_of(request)
    check_content_type(request.headers)
    data = await read_body(request, service.config.max_body_size, service.config.receive_timeout)
    record_of(request).body_size = len(data)
    return await service.texts.read(len(data), lambda: parse_body(data, model, table, service.config.allow_unknown_parameters))


def terms_of(request: Request, body: SamplingBody | PooledBody) -> Terms:
    """The terms on which a body asks to be served."""
    timeout, priority = body.timeout, body.priority
    if record_of(request).batch_owner is not None:
        priority = max(priority, _BATCH_PRIORITY)
    elif timeout is None:
        timeout = service_of(request).config.request_timeout
    return Terms(priority, _cache_salt_of(request, body), _tenant_of(request, body), timeout)


def _cache_salt_of(request: Request, body: SamplingBody | PooledBody) -> str | None:
    """With whom a request shares cached prefixes: with all of the same salt, and where keys are isolated, with its key's alone."""
    if not service_of(request).config.isolate_keys:
        return body.cache_salt
    # No key's name has a line break, so no salt of one key is that of another.
    return f"{owner_of(request)}\n{body.cache_salt or ''}"


def owner_of(request: Request) -> str:
    """Whose a request is: its key's holder's, or where all clients have one key or none, that of whatever key it carries."""
    record = record_of(request)
    if record.batch_owner is not None:
        return record.batch_owner
    caller = record.caller
    if not caller.is_shared:
        return f"key:{caller.name}"
    key = key_in(request.scope["headers"])
    return f"anonymous:{hashlib.sha256(key).hexdigest()[:16]}" if key else ""


def _tenant_of(request: Request, body: SamplingBody | PooledBody) -> str:
    """Whose turn a request takes: its owner's. Where all clients have one key or none, that of the user whom the client names."""
    if record_of(request).caller.is_shared and body.end_user is not None:
        return f"user:{body.end_user}"
    return owner_of(request)


async def answer_waiting(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """The answer as JSON once it is whole. The work is given up when the client leaves."""
    return json_response(await while_connected(request, work))


def json_response(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")

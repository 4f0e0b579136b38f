"""/v1/files and /v1/batches, in OpenAI's shapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from engine.errors import InvalidRequestError, is_disk_full
from server.batches.lines import ENDPOINTS
from server.batches.runner import BatchRunner, window_seconds
from server.batches.store import BatchStore, no_space
from server.errors import ApiError
from server.observability.record import record_of
from server.protocol.batches import BatchRequest
from server.protocol.fates_batches import BATCHES
from server.routes.generate import body_of, json_response, owner_of, service_of

router = APIRouter(prefix="/v1")

_Order = Literal["asc", "desc"]
_FORM = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": ["batch"]}},
    "required": ["file", "purpose"],
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


@router.post("/files", response_model=None, openapi_extra=_UPLOAD)
async def upload_file(request: Request) -> Any:
    """Keep a file of requests: multipart/form-data with `file` and `purpose` (batch)."""
    store, patience = _store(request), service_of(request).config.receive_timeout
    longest = service_of(request).config.max_batch_file_size
    bounded = Request(request.scope, _bounded(request, longest, patience))
    try:
        async with bounded.form(max_files=1, max_fields=8) as form:
            file, purpose = form.get("file"), form.get("purpose")
            if unknown := set(form) - {"file", "purpose"}:
                raise InvalidRequestError(f"the form field {min(unknown)[:100]!r} is not supported", param=min(unknown)[:100])
            if not isinstance(file, UploadFile):
                raise InvalidRequestError("the form must hold a file", param="file")
            if purpose != "batch":
                raise InvalidRequestError("purpose must be batch: files serve nothing else here", param="purpose")
            name = (file.filename or "file.jsonl").replace("\\", "/").rpartition("/")[2][:255]
            fields = {"created_at": int(time.time()), "filename": name, "purpose": "batch", "status": "processed"}
            pieces = iter(lambda: file.file.read(1 << 20), b"")
            return json_response(await store.run(lambda: store.add_file(owner_of(request), fields, pieces)))
    except OSError as error:  # of the temporary file that the form is read into
        if is_disk_full(error):
            raise no_space("the disk of this server is full") from error
        raise
    except HTTPException as error:  # of a form that is none
        raise ApiError(400, f"the body must be multipart/form-data with a file and a purpose: {error.detail}") from error


@router.get("/files", response_model=None)
async def list_files(
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: _Order = "desc",
    purpose: str | None = None,
) -> Any:
    """Uploaded files and those that batches have made, newest first."""
    store, owner = _store(request), owner_of(request)
    found = await store.run(lambda: store.page("files", owner, after, limit + 1, order == "asc", purpose))
    return json_response(_page(found, limit))


@router.get("/files/{file_id}", response_model=None)
async def get_file(request: Request, file_id: str) -> Any:
    """What is known of a file."""
    return json_response(await _file(request, file_id))


@router.get("/files/{file_id}/content", response_model=None)
async def get_content(request: Request, file_id: str) -> Any:
    """A file's content."""
    store, file = _store(request), await _file(request, file_id)
    try:
        # Opened before the answer begins: from then on it may be deleted.
        content = await store.run(lambda: store.path(file["id"]).open("rb"))
    except FileNotFoundError:
        raise _not_found("file", file_id) from None
    size = {"content-length": str(file["bytes"])}
    return StreamingResponse(_pieces(content), media_type="application/octet-stream", headers=size)


@router.delete("/files/{file_id}", response_model=None)
async def delete_file(request: Request, file_id: str) -> Any:
    """Forget a file, unless a batch reads it."""
    store, owner = _store(request), owner_of(request)
    await _file(request, file_id)
    if await store.run(lambda: store.is_input(file_id)):
        raise ApiError(409, f"a batch reads {file_id}: cancel it first, or wait for its end", code="file_in_use")
    if not await store.run(lambda: store.delete_file(owner, file_id)):
        raise _not_found("file", file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


@router.post("/batches", response_model=None)
async def create_batch(request: Request) -> Any:
    """Run the requests of a file when there is time for them."""
    store, owner = _store(request), owner_of(request)
    body = await body_of(request, BatchRequest, BATCHES)
    if body.endpoint not in ENDPOINTS:
        raise InvalidRequestError(f"endpoint must be one of {', '.join(ENDPOINTS)}, but is {body.endpoint[:100]!r}", param="endpoint")
    file = await store.run(lambda: store.find("files", owner, body.input_file_id))
    if file is None or file["purpose"] != "batch":
        raise _not_found("file", body.input_file_id, param="input_file_id")
    now = int(time.time())
    ends = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    batch: dict[str, Any] = {
        "id": f"batch_{record_of(request).hex}",
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + window_seconds(body.completion_window),
        **{f"{status}_at": None for status in ends},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": body.metadata,
    }
    await store.run(lambda: store.add_batch(owner, batch))
    _runner(request).begin(owner, batch)
    return json_response(batch)


@router.get("/batches", response_model=None)
async def list_batches(request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> Any:
    """The caller's batches, newest first."""
    store, owner = _store(request), owner_of(request)
    return json_response(_page(await store.run(lambda: store.page("batches", owner, after, limit + 1, False)), limit))


@router.get("/batches/{batch_id}", response_model=None)
async def get_batch(request: Request, batch_id: str) -> Any:
    """A batch, and how far it has come."""
    return json_response(await _batch(request, batch_id))


@router.post("/batches/{batch_id}/cancel", response_model=None)
async def cancel_batch(request: Request, batch_id: str) -> Any:
    """Run no further lines. What is done already becomes the output."""
    cancelling = await _runner(request).cancel(owner_of(request), batch_id)
    if cancelling is None:
        batch = await _batch(request, batch_id)
        raise ApiError(409, f"the batch cannot be cancelled: it is {batch['status']}", code="batch_not_cancellable")
    return json_response(cancelling)


def _runner(request: Request) -> BatchRunner:
    runner: BatchRunner | None = request.app.state.batches
    if runner is None:
        raise ApiError(404, "this server keeps no files and runs no batches: start it with --batch-dir PATH", code="batches_off")
    return runner


def _store(request: Request) -> BatchStore:
    return _runner(request).store


async def _file(request: Request, file_id: str) -> dict[str, Any]:
    store, owner = _store(request), owner_of(request)
    found = await store.run(lambda: store.find("files", owner, file_id))
    if found is None:
        raise _not_found("file", file_id)
    return found


async def _batch(request: Request, batch_id: str) -> dict[str, Any]:
    store, owner = _store(request), owner_of(request)
    found = await store.run(lambda: store.find("batches", owner, batch_id))
    if found is None:
        raise _not_found("batch", batch_id)
    return found


def _pieces(content: BinaryIO) -> Iterator[bytes]:
    with content:
        yield from iter(lambda: content.read(1 << 18), b"")


def _not_found(what: str, item_id: str, param: str | None = None) -> ApiError:
    return ApiError(404, f"there is no {what} {item_id[:100]!r} here", param=param, code=f"{what}_not_found")


def _page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = found[:limit]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(found) > limit}


def _bounded(request: Request, longest: int, patience: float) -> Any:
    """What receives the request's body. Raises ApiError 413 once it is longer than a file may be, and 408 when nothing comes any more."""
    allowed = longest + (64 << 10)  # the form around the file
    received = 0

    async def receive() -> Message:
        nonlocal received
        try:
            async with asyncio.timeout(patience or None):
                message = await request.receive()
        except TimeoutError:
            message_text = f"nothing of the file arrived for {patience:g} s"
            raise ApiError(408, message_text, code="body_timeout", headers={"connection": "close"}) from None
        received += len(message.get("body", b""))
        if received > allowed:
            message_text = f"the file is longer than the {longest} bytes that this server takes"
            raise ApiError(413, message_text, param="file", code="request_too_large", headers={"connection": "close"})
        return message

    return receive

"""/v1/responses: make a response, whole, as a stream or in the background; read, cancel and delete stored ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from engine.errors import InvalidRequestError
from server.background import BackgroundRun, BackgroundRuns, background_record
from server.chat.preparation import begin_chat, chat_prompt
from server.chat.truncation import shortened
from server.errors import ApiError
from server.observability.record import RequestRecord, record_of
from server.protocol.chat import ChatCompletionRequest
from server.protocol.fates_responses import INPUT_TOKENS, RESPONSES
from server.protocol.responses import ResponseInput, ResponsesRequest
from server.render.response_object import new_response
from server.response_run import ResponseRun, Shelf
from server.response_store import ResponseStore, StoredResponse, no_such_response
from server.routes.generate import answer_waiting, body_of, json_response, owner_of, service_of, terms_of
from server.sse import EventStream
from server.translate.conversation import Conversation, items_for, translated
from server.translate.parameters import renamed

router = APIRouter(prefix="/v1/responses")


@router.post("", response_model=None)
async def create_response(request: Request) -> Any:
    """Respond to a text or to items: whole, as a stream of events, or later."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, ResponsesRequest, RESPONSES)
    body.check()
    owner, response_id = owner_of(request), f"resp_{record.hex}"
    conversation = await _conversation(request, body)
    if not body.background:
        run = await _begin(request, body, conversation, owner, response_id, record)
        if body.stream:
            return EventStream(_joined(run.stream()), service.config.sse_keepalive)
        return await answer_waiting(request, run.whole())

    behind = background_record(record)
    try:
        background = BackgroundRun(await _begin(request, body, conversation, owner, response_id, behind), behind, body.stream)
        queued = json_response(background.run.response)
        await _background(request).start(owner, background)
    except BaseException:
        behind.end()
        raise
    return EventStream(background.frames(), service.config.sse_keepalive) if body.stream else queued


@router.post("/input_tokens", response_model=None)
async def count_input_tokens(request: Request) -> Any:
    """How many tokens an input is for the model."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, ResponseInput, INPUT_TOKENS)
    body.check()
    service.resolve_model(body.model)
    conversation = await _conversation(request, body)
    with renamed(conversation.rename):
        chat_body = await _fitted(request, body, conversation.chat)
        prompt = await chat_prompt(service, chat_body, record.body_size)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


@router.get("/{response_id}", response_model=None)
async def get_response(
    request: Request, response_id: str, stream: bool = False, starting_after: Annotated[int | None, Query(ge=0)] = None
) -> Any:
    """A stored response, as far as it has come; or, while that is kept, the events of one that was made in the background."""
    owner = owner_of(request)
    if stream:
        found = _background(request).stream(owner, response_id)
        if found is None:
            await _stored(request, response_id)
            message = "its events are not kept: only those of responses made with background and stream are, for a while"
            raise ApiError(400, message, param="stream", code="stream_not_available")
        return EventStream(found.frames(-1 if starting_after is None else starting_after), service_of(request).config.sse_keepalive)
    if starting_after is not None:
        raise InvalidRequestError("starting_after is only allowed when stream is true", param="starting_after")
    running = _background(request).running(owner, response_id)
    return json_response((await _stored(request, response_id)).response if running is None else running.run.response)


@router.delete("/{response_id}", response_model=None)
async def delete_response(request: Request, response_id: str) -> Any:
    """Forget a response. One that is still being made is cancelled."""
    owner, background = owner_of(request), _background(request)
    if (running := background.running(owner, response_id)) is not None:
        await running.cancel()
    background.forget(owner, response_id)
    if not await _store(request).delete(owner, response_id):
        raise no_such_response(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel", response_model=None)
async def cancel_response(request: Request, response_id: str) -> Any:
    """Stop a response that is made in the background. One that has ended stays as it is."""
    running = _background(request).running(owner_of(request), response_id)
    if running is not None:
        await running.cancel()
        return json_response(running.run.response)
    response = (await _stored(request, response_id)).response
    if not response["background"]:
        raise ApiError(400, "only a response that was made with background: true can be cancelled", code="not_in_background")
    return json_response(response)


@router.get("/{response_id}/input_items", response_model=None)
async def list_input_items(
    request: Request,
    response_id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Any:
    """The items that a response answered, those of the responses before it included. The latest come first unless `order` is asc."""
    items = (await _stored(request, response_id)).items
    items = items[::-1] if order == "desc" else items
    if after is not None:
        place = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise InvalidRequestError(f"after names no item of this response: {after[:100]!r}", param="after")
        items = items[place + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > limit})


async def _begin(
    request: Request, body: ResponsesRequest, conversation: Conversation, owner: str, response_id: str, record: RequestRecord
) -> ResponseRun:
    """Start the generation that answers, on behalf of `record`."""
    with renamed(conversation.rename):
        chat_body = await _fitted(request, body, conversation.chat)
        chat = await begin_chat(service_of(request), record, chat_body, terms_of(request, chat_body), response_id)
    response = new_response(response_id, int(time.time()), chat.model, body, chat.params)
    shelf = Shelf(_store(request), owner, conversation.items, body.store)
    return ResponseRun(chat, body, response, shelf, record)


async def _conversation(request: Request, body: ResponseInput) -> Conversation:
    record = record_of(request)
    items = await items_for(body, _store(request), owner_of(request), record)
    return await service_of(request).texts.read(record.body_size, lambda: translated(body, items, record.hex))


async def _fitted(request: Request, body: ResponseInput, chat: ChatCompletionRequest) -> ChatCompletionRequest:
    return await shortened(service_of(request), chat, record_of(request).body_size) if body.truncation == "auto" else chat


async def _joined(steps: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for frames in steps:
        if frames:
            yield b"".join(frames)


async def _stored(request: Request, response_id: str) -> StoredResponse:
    found = await _store(request).load(owner_of(request), response_id)
    if found is None:
        raise no_such_response(response_id)
    return found


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _background(request: Request) -> BackgroundRuns:
    runs: BackgroundRuns = request.app.state.background
    return runs

"""POST /v1/messages and POST /v1/messages/count_tokens, in Anthropic's shapes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.chat.preparation import begin_chat, chat_prompt
from server.observability.record import record_of
from server.protocol.fates_messages import COUNT_TOKENS, MESSAGES
from server.protocol.messages import CountTokensRequest, MessagesRequest
from server.render.messages import MessageAnswer
from server.routes.generate import answer_waiting, body_of, json_response, service_of, terms_of
from server.sse import EventStream
from server.translate.messages import translated
from server.translate.parameters import renamed

router = APIRouter(prefix="/v1/messages")


@router.post("", response_model=None)
async def create_message(request: Request) -> Any:
    """Answer a conversation, whole or as a stream of events."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, MessagesRequest, MESSAGES)
    body.check()
    chat_body, rename = await service.texts.read(record.body_size, lambda: translated(body))
    message_id = f"msg_{record.hex}"
    with renamed(rename):
        chat = await begin_chat(service, record, chat_body, terms_of(request, chat_body), message_id, as_many_as_fit=True)
    answer = MessageAnswer(message_id, chat, body.max_tokens)
    if body.stream:
        return EventStream(answer.stream(), service.config.sse_keepalive)
    return await answer_waiting(request, answer.whole())


@router.post("/count_tokens", response_model=None)
async def count_tokens(request: Request) -> Any:
    """How many tokens a conversation is for the model."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, CountTokensRequest, COUNT_TOKENS)
    service.resolve_model(body.model)
    chat_body, rename = await service.texts.read(record.body_size, lambda: translated(body))
    with renamed(rename):
        return json_response({"input_tokens": len(await chat_prompt(service, chat_body, record.body_size))})

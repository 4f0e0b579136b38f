"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from server.chat.preparation import begin_chat
from server.observability.record import record_of
from server.protocol import fates
from server.protocol.chat import ChatCompletionRequest
from server.render.chat import ChatAnswer
from server.routes.generate import answer_waiting, body_of, service_of, terms_of
from server.sse import EventStream

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(request: Request) -> Any:
    """Answer a conversation, whole or as a stream of chunks."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, ChatCompletionRequest, fates.CHAT)
    answer_id = f"chatcmpl-{record.hex}"
    chat = await begin_chat(service, record, body, terms_of(request, body), answer_id)
    answer = ChatAnswer(
        id=answer_id,
        created=int(time.time()),
        model=chat.model,
        system_fingerprint=service.system_fingerprint,
        n=body.n,
        token_text=chat.token_text,
        with_logprobs=body.logprobs,
        with_token_ids=body.return_token_ids,
        new_parser=chat.new_parser,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
    )
    if body.stream:
        return EventStream(answer.stream(chat.generation), service.config.sse_keepalive)
    return await answer_waiting(request, answer.whole(chat.generation))

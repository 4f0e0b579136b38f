"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from server.generation import Generation
from server.protocol import fates
from server.protocol.chat import ChatCompletionRequest
from server.record import record_of
from server.render.chat import ChatAnswer
from server.render.tokens import TokenText
from server.routes.generate import answer_waiting, body_of, documented, fit_prompt, service_of, terms_of
from server.sse import EventStream

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None, openapi_extra=documented(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Any:
    """Answer a conversation, whole or as a stream of chunks."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, ChatCompletionRequest, fates.CHAT)
    model = service.resolve_model(body.model)
    body.check_streaming()
    max_tokens, logprobs = body.token_limit(), body.wanted_logprobs()
    params = body.sampling_params(service.defaults, service.tokenizer.vocab_size, max_tokens, logprobs, body.prompt_logprobs)
    service.admit(record, 1, params.num_sequences)

    text = await service.render(body.messages, body, record.body_size)
    (token_ids,) = await service.encode([text], body.add_special_tokens, "messages")
    prompt = fit_prompt(token_ids, body, service.engine.max_model_len, max_tokens, "messages")
    answer = ChatAnswer(
        id=f"chatcmpl-{record.hex}",
        created=int(time.time()),
        model=model,
        system_fingerprint=service.system_fingerprint,
        n=body.n,
        token_text=TokenText(service.tokenizer, body.skip_special_tokens),
        with_logprobs=body.logprobs,
        with_token_ids=body.return_token_ids,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
    )
    generation = Generation(service, record, prompt, params, answer.id, terms_of(request, body))
    if body.stream:
        return EventStream(answer.stream(generation), service.config.sse_keepalive)
    return await answer_waiting(request, answer.whole(generation))

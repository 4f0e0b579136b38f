"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.observability.record import record_of
from server.protocol import fates
from server.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from server.routes.generate import body_of, json_response, service_of

router = APIRouter()


@router.post("/tokenize", response_model=None)
async def tokenize(request: Request) -> Any:
    """The token ids of a text, or of a conversation as the model would see it."""
    service = service_of(request)
    body = await body_of(request, TokenizeRequest, fates.TOKENIZE)
    service.resolve_model(body.model)
    if body.messages is not None:
        text = await service.texts.render(body.messages, body, body.tool_use(), record_of(request).body_size)
        (tokens,) = await service.texts.encode([text], bool(body.add_special_tokens), "messages")
    else:
        (tokens,) = await service.texts.encode([body.prompt or ""], body.add_special_tokens is not False, "prompt")
    names = await service.texts.token_strings(tokens) if body.return_token_strs else None
    return json_response({"count": len(tokens), "max_model_len": service.engine.max_model_len, "tokens": tokens, "token_strs": names})


@router.post("/detokenize", response_model=None)
async def detokenize(request: Request) -> Any:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    body = await body_of(request, DetokenizeRequest, fates.DETOKENIZE)
    service.resolve_model(body.model)
    return json_response({"prompt": await service.texts.decode(body.tokens)})

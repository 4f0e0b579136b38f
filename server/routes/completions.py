"""POST /v1/completions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from engine.errors import InvalidRequestError
from server.generation import Generation, fit_prompt
from server.observability.record import record_of
from server.protocol import fates
from server.protocol.completions import CompletionRequest
from server.protocol.prompts import Prompt
from server.render.completions import CompletionAnswer
from server.render.tokens import TokenText
from server.routes.generate import answer_waiting, body_of, service_of, terms_of
from server.service import Service
from server.sse import EventStream

router = APIRouter()


@router.post("/v1/completions", response_model=None)
async def create_completion(request: Request) -> Any:
    """Continue one text or several, whole or as a stream of chunks."""
    service, record = service_of(request), record_of(request)
    body = await body_of(request, CompletionRequest, fates.COMPLETIONS)
    model = service.resolve_model(body.model)
    body.check_streaming()
    # Scoring clients send max_tokens 0 with echo. The engine makes a token anyway, to have computed all of the prompt.
    only_prompt = body.max_tokens == 0
    max_tokens = 1 if only_prompt else body.max_tokens
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(body.logprobs, prompt_logprobs or 0)
    params = body.sampling_params(service.defaults, service.tokenizer.vocab_size, max_tokens, body.logprobs, prompt_logprobs)
    most = service.engine.config.max_waiting_requests
    if most is not None and len(body.prompt) > most:
        raise InvalidRequestError(
            f"prompt holds {len(body.prompt)} prompts, but no more than {most} may wait: send fewer at once", "prompt"
        )
    service.admit(record, len(body.prompt), params.num_sequences)

    tokenized = await _tokens(service, body)
    prompts = [fit_prompt(one, body, service.engine.max_model_len, max_tokens, "prompt") for one in tokenized]
    answer = CompletionAnswer(
        id=f"cmpl-{record.hex}",
        created=int(time.time()),
        model=model,
        system_fingerprint=service.system_fingerprint,
        n=body.n,
        token_text=TokenText(service.tokenizer, body.skip_special_tokens),
        logprobs=body.logprobs,
        echoed=[await _text(service, *pair, body) for pair in zip(body.prompt, prompts, strict=True)] if body.echo else None,
        with_token_ids=body.return_token_ids,
        with_prompt_logprobs=body.prompt_logprobs is not None,
        only_prompt=only_prompt,
        include_usage=body.include_usage,
        continuous_usage=body.continuous_usage,
    )
    await service.texts.check_constraint(params.structured_outputs, body.constraining_parameter)
    terms = terms_of(request, body)
    longest = service.engine.max_model_len
    generations = [
        Generation(service, record, prompt, body.for_prompt(params, longest - len(prompt)), f"{answer.id}-{index}", terms)
        for index, prompt in enumerate(prompts)
    ]
    if body.stream:
        return EventStream(answer.stream(generations), service.config.sse_keepalive)
    return await answer_waiting(request, answer.whole(generations))


async def _tokens(service: Service, body: CompletionRequest) -> list[list[int]]:
    texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
    encoded = iter(await service.texts.encode(texts, body.add_special_tokens, "prompt"))
    tokenized: list[list[int]] = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            tokenized.append(next(encoded))
        else:
            service.texts.check_token_ids(prompt, "prompt")
            tokenized.append(prompt)
    return tokenized


async def _text(service: Service, prompt: Prompt, token_ids: list[int], body: CompletionRequest) -> str:
    """What `echo` repeats: the text that was sent, unless it was sent as ids or cut."""
    if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
        return prompt
    return await service.texts.decode(token_ids)

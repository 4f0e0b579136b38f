"""From a chat completion's body to a running generation: the way of every API that answers with messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engine.chat.deltas import MessageParser, PlainText
from engine.sampling_params import SamplingParams
from server.chat.deltas import MessageDeltas
from server.generation import Generation, Terms, fit_prompt
from server.observability.record import RequestRecord
from server.protocol.chat import ChatCompletionRequest
from server.render.tokens import TokenText
from server.service import Service


@dataclass(frozen=True)
class Chat:
    """A chat request that runs in the engine."""

    model: str  # as the answer reports it
    params: SamplingParams
    token_text: TokenText
    generation: Generation
    new_parser: Callable[[], MessageParser] = PlainText

    def messages(self) -> MessageDeltas:
        """What is generated, as deltas of messages. Can be asked for once."""
        return MessageDeltas(self.generation, self.params.n, self.new_parser)


async def begin_chat(
    service: Service, record: RequestRecord, body: ChatCompletionRequest, terms: Terms, request_id: str, as_many_as_fit: bool = False
) -> Chat:
    """Start what a body asks for. Its places are given back when the record ends.

    `as_many_as_fit`: a max_tokens for which the context has no room means to the end of the context, rather than an error.
    Raises ApiError, InvalidRequestError or OverloadedError for what cannot be served.
    """
    model = service.resolve_model(body.model)
    body.check_streaming()
    max_tokens, logprobs = body.token_limit(), body.wanted_logprobs()
    params = body.sampling_params(service.defaults, service.tokenizer.vocab_size, max_tokens, logprobs, body.prompt_logprobs)
    use = body.tool_use()
    service.admit(record, 1, params.num_sequences)
    text = await service.texts.render(body.messages, body, use, record.body_size)
    prompt = await _encode(service, body, text)
    if as_many_as_fit and params.max_tokens is not None and len(prompt) + params.max_tokens > service.engine.max_model_len:
        params = msgspec.structs.replace(params, max_tokens=None)
    format = await service.texts.format_of(body)
    plan = format.plan(text, use, params, body.answer_wishes(format))
    constrained_by = "tools" if use is not None else body.constraining_parameter
    await service.texts.check_constraint(plan.params.structured_outputs, constrained_by)
    generation = Generation(service, record, prompt, plan.params, request_id, terms)
    token_text = TokenText(service.tokenizer, body.skip_special_tokens, plan.params.visible_token_ids)
    return Chat(model, plan.params, token_text, generation, plan.new_parser)


async def chat_prompt(service: Service, body: ChatCompletionRequest, num_bytes: int) -> list[int]:
    """The tokens that the model is to go on from, for a body of `num_bytes` bytes. Raises InvalidRequestError when there are none."""
    return await _encode(service, body, await service.texts.render(body.messages, body, body.tool_use(), num_bytes))


async def _encode(service: Service, body: ChatCompletionRequest, text: str) -> list[int]:
    (token_ids,) = await service.texts.encode([text], body.add_special_tokens, "messages")
    return fit_prompt(token_ids, body, service.engine.max_model_len, body.token_limit(), "messages")

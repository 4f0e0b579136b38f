"""Conversations that are too long for the model, without their oldest messages."""

from __future__ import annotations

from engine.errors import InvalidRequestError
from server.chat.preparation import chat_prompt
from server.protocol.chat import ChatCompletionRequest
from server.service import Service


async def shortened(service: Service, body: ChatCompletionRequest, num_bytes: int) -> ChatCompletionRequest:
    """The body without as few of its oldest messages as leave room for the answer.

    System messages at the start stay, and what is left begins with a user's message, so that no tool's answer loses its call.
    Should nothing fit, the shortest is returned, for the engine to refuse with the numbers.
    """
    room = service.engine.max_model_len - (body.token_limit() or 1)
    opening = next((place for place, message in enumerate(body.messages) if message.role not in ("system", "developer")), 0)

    def without(place: int) -> ChatCompletionRequest:
        return body.model_copy(update={"messages": [*body.messages[:opening], *body.messages[place:]]})

    async def fits(candidate: ChatCompletionRequest) -> bool:
        try:
            return len(await chat_prompt(service, candidate, num_bytes)) <= room
        except InvalidRequestError as error:
            if error.code == "context_length_exceeded":  # it is not even worth tokenizing
                return False
            raise

    if await fits(body):
        return body
    starts = [place for place in range(opening + 1, len(body.messages)) if body.messages[place].role == "user"]
    low, high = 0, len(starts) - 1  # the first of `starts` that fits is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if await fits(without(starts[middle])):
            high = middle
        else:
            low = middle + 1
    return without(starts[high]) if starts else body

"""One response on its way: from the deltas of a chat message to events, and into the store before its last one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from server.chat.preparation import Chat
from server.errors import as_api_error, is_foreseen
from server.observability.logs import logger
from server.observability.record import RequestRecord
from server.protocol.responses import ResponsesRequest
from server.render.response_object import response_usage
from server.render.responses import ResponseBuilder
from server.response_store import ResponseStore, StoredResponse
from server.sse import named_event


@dataclass(frozen=True)
class Shelf:
    """Where a response is kept, or that it is not."""

    store: ResponseStore
    owner: str
    items: list[dict[str, Any]]  # what it answers
    keeps: bool

    async def put(self, response: dict[str, Any], running: bool = False) -> None:
        if self.keeps:
            await self.store.save(self.owner, StoredResponse(response, self.items), running)


class ResponseRun:
    """Makes one response, whole or as a stream. Leaving it early aborts the generation."""

    def __init__(self, chat: Chat, body: ResponsesRequest, response: dict[str, Any], shelf: Shelf, record: RequestRecord) -> None:
        self.response = response  # as far as it has come
        self._chat = chat
        self._shelf = shelf
        self._record = record
        self._with_logprobs = body.wants_logprobs
        self._frames: list[bytes] = []  # of events that were made and not yet sent
        self._builder = ResponseBuilder(response, self._write if body.stream else _discard, body.namespaces)

    async def whole(self) -> dict[str, Any]:
        """The response once it is complete. Raises what the generation raises."""
        async for _ in self._generate():
            pass
        await self._shelf.put(self.response)
        return self.response

    async def stream(self) -> AsyncIterator[list[bytes]]:
        """The frames of a stream, in lists of those that are due at the same time. Errors are an event of it."""
        try:
            async for _ in self._generate():
                yield self._due()
        except Exception as error:
            if not is_foreseen(error):
                logger.error("request %s failed in mid-stream", self._record.request_id, exc_info=error)
            answer = as_api_error(error, self._record.request_id)
            self._record.error = answer.message
            self._builder.fail(answer)
        await self._shelf.put(self.response)
        self._builder.conclude()
        yield self._due()

    async def begin(self) -> None:
        """Let others see, from now on, that it is being made."""
        await self._shelf.put(self.response, running=True)

    async def cancel(self) -> None:
        """Keep what there is of it. Nobody may be iterating over it any more."""
        self._builder.cancel()
        await self._shelf.put(self.response)

    async def _generate(self) -> AsyncIterator[None]:
        """Yields whenever there may be new events."""
        self._builder.open()
        yield
        messages, finish_reason = self._chat.messages(), None
        async for choices in messages:
            for choice in choices:
                positions = choice.tokens.logprobs if self._with_logprobs else None
                logprobs = self._chat.token_text.chat_logprobs(positions)["content"] if positions else ()
                self._builder.take(choice.deltas, logprobs)
                finish_reason = choice.finish_reason
            if self._frames:
                yield
        usage = response_usage(self._chat.generation, messages.reasoning_tokens)
        self._builder.end("incomplete" if finish_reason == "length" else "completed", usage)
        yield

    def _write(self, event: dict[str, Any]) -> None:
        # At once: it holds parts of the response, which grow.
        self._frames.append(named_event(event["type"], msgspec.json.encode(event)))

    def _due(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames


def _discard(event: dict[str, Any]) -> None:
    """Nobody sees the events of a response that is given whole."""

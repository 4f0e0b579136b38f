"""A message in Anthropic's shape and its events, from the deltas of a chat message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.chat.deltas import Content, Delta, Reasoning, ToolArguments, ToolCallStart
from server.chat.deltas import ChoiceDelta
from server.chat.preparation import Chat
from server.sse import named_event

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class MessageAnswer:
    """The answer to one request, whole or as a stream."""

    id: str
    chat: Chat
    max_tokens: int

    async def stream(self) -> AsyncIterator[bytes]:
        """The frames of a stream. Raises what the generation raises."""
        events: list[dict[str, Any]] = []
        async for _ in self._fill(MessageBuilder(self._empty(), events.append)):
            if events:
                yield b"".join([named_event(event["type"], msgspec.json.encode(event)) for event in events])
                events.clear()

    async def whole(self) -> dict[str, Any]:
        """The message. Raises what the generation raises."""
        builder = MessageBuilder(self._empty(), lambda event: None)
        async for _ in self._fill(builder):
            pass
        return builder.message

    async def _fill(self, builder: MessageBuilder) -> AsyncIterator[None]:
        """Yields whenever there may be new events."""
        yield
        messages, last = self.chat.messages(), None
        async for choices in messages:
            for choice in choices:
                builder.take(choice.deltas)
                last = choice
            yield
        builder.end(*self._stop(last), self._usage(messages.reasoning_tokens))
        yield

    def _empty(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.chat.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(0),
        }

    def _stop(self, last: ChoiceDelta | None) -> tuple[str, str | None]:
        """(stop_reason, stop_sequence) of a message that ends with this delta."""
        if last is None or last.finish_reason is None:
            return "end_turn", None
        stopped_by = last.tokens.stop_reason
        if last.finish_reason == "length":
            reached = self.chat.generation.completion_tokens >= self.max_tokens
            return "max_tokens" if reached else "model_context_window_exceeded", None
        if last.finish_reason == "stop" and isinstance(stopped_by, str) and stopped_by != "repetition_detected":
            return "stop_sequence", stopped_by
        return "tool_use" if last.finish_reason == "tool_calls" else "end_turn", None

    def _usage(self, thinking_tokens: int) -> dict[str, Any]:
        """Cached tokens are counted apart. How many there are is not known when a stream begins."""
        generation = self.chat.generation
        return {
            "input_tokens": len(generation.prompt_token_ids) - generation.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": generation.cached_tokens,
            "output_tokens": generation.completion_tokens,
            "output_tokens_details": {"thinking_tokens": thinking_tokens},
        }


class MessageBuilder:
    """Fills in a message, and tells `emit` of each event. Blocks are opened and closed one after the other."""

    def __init__(self, message: dict[str, Any], emit: Emit) -> None:
        self.message = message
        self._emit = emit
        self._pieces: list[str] = []  # of the open block
        emit({"type": "message_start", "message": {**message, "content": []}})
        emit({"type": "ping"})

    def take(self, deltas: Sequence[Delta]) -> None:
        """What is new in the message."""
        for delta in deltas:
            match delta:
                case Content(text):
                    self._add("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": text}, text)
                case Reasoning(text):
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    self._add("thinking", block, {"type": "thinking_delta", "thinking": text}, text)
                case ToolCallStart(_, call_id, name):
                    self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                case ToolArguments(_, text):
                    self._add("tool_use", {}, {"type": "input_json_delta", "partial_json": text}, text)

    def end(self, stop_reason: str, stop_sequence: str | None, usage: dict[str, Any]) -> None:
        """The message is whole, or as long as it was allowed to become."""
        self._close()
        stop = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        self.message |= {**stop, "usage": usage}
        self._emit({"type": "message_delta", "delta": stop, "usage": usage})
        self._emit({"type": "message_stop"})

    @property
    def _blocks(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = self.message["content"]
        return blocks

    def _add(self, kind: str, block: dict[str, Any], delta: dict[str, Any], text: str) -> None:
        if not self._blocks or self._blocks[-1]["type"] != kind:
            self._open(block)
        self._pieces.append(text)
        self._emit({"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta})

    def _open(self, block: dict[str, Any]) -> None:
        self._close()
        self._blocks.append(block)
        self._pieces = []
        self._emit({"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": {**block}})

    def _close(self) -> None:
        if not self._blocks:
            return
        block, text = self._blocks[-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
        self._emit({"type": "content_block_stop", "index": len(self._blocks) - 1})


def _input(text: str) -> dict[str, Any]:
    """A call's input, which must be an object. What is none is wrapped in the way that Anthropic's documentation wraps it."""
    try:
        parsed = msgspec.json.decode(text) if text.strip() else {}
    except msgspec.DecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": text}

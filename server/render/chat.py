"""Answers of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from engine.chat.deltas import Content, Delta, MessageParser, PlainText, Reasoning, ToolArguments, ToolCallStart
from engine.chat.message import ChatMessage
from server.chat.deltas import ChoiceDelta, MessageDeltas
from server.generation import Generation
from server.render.chunks import ChunkWriter
from server.render.collect import CollectedSequence
from server.render.tokens import TokenText, usage
from server.sse import DONE


@dataclass(frozen=True)
class ChatAnswer:
    """What all answers to one chat request have in common."""

    id: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str
    n: int
    token_text: TokenText
    with_logprobs: bool
    with_token_ids: bool
    new_parser: Callable[[], MessageParser] = PlainText
    include_usage: bool = False
    continuous_usage: bool = False

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The frames of a stream. Raises what the generation raises."""
        messages = MessageDeltas(generation, self.n, self.new_parser)
        head = self._head("chat.completion.chunk")
        running = (lambda: self._usage(generation, messages)) if self.continuous_usage else None
        chunks = ChunkWriter(head, "content", self.include_usage, running)
        top_level = {"prompt_token_ids": generation.prompt_token_ids} if self.with_token_ids else {}
        yield b"".join(chunks.role(index, top_level) for index in range(self.n))
        rich = self.with_logprobs or self.with_token_ids
        async for choices in messages:
            frames = b""
            for choice in choices:
                if rich:
                    frames += self._rich_chunks(chunks, choice)
                else:
                    for delta in choice.deltas:
                        frames += _chunk(chunks, choice.index, delta)
                if choice.finish_reason is not None:
                    frames += chunks.final(choice.index, choice.finish_reason, choice.tokens.stop_reason)
            if frames:
                yield frames
        if self.include_usage:
            yield chunks.usage(self._usage(generation, messages))
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer as one object. Raises what the generation raises."""
        messages = MessageDeltas(generation, self.n, self.new_parser)
        choices = [_Choice() for _ in range(self.n)]
        async for deltas in messages:
            for delta in deltas:
                choices[delta.index].take(delta)
        answer = {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": self._usage(generation, messages),
        }
        if generation.prompt_logprobs is not None:
            answer["prompt_logprobs"] = self.token_text.prompt_logprobs(generation.prompt_logprobs)
        if self.with_token_ids:
            answer["prompt_token_ids"] = generation.prompt_token_ids
        return answer

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    def _usage(self, generation: Generation, messages: MessageDeltas) -> dict[str, Any]:
        num_prompt, num_completed = len(generation.prompt_token_ids), generation.completion_tokens
        return usage(num_prompt, num_completed, generation.cached_tokens, messages.reasoning_tokens)

    def _rich_chunks(self, chunks: ChunkWriter, choice: ChoiceDelta) -> bytes:
        """The frames of a choice's deltas. What belongs to its tokens stands in the first of them, which may have empty content."""
        tokens = choice.tokens
        if not choice.deltas and not tokens.token_ids:
            return b""
        logprobs = self.token_text.chat_logprobs(tokens.logprobs) if self.with_logprobs and tokens.logprobs else None
        extras = {"token_ids": tokens.token_ids} if self.with_token_ids else {}
        frames = b""
        for delta in choice.deltas or [Content("")]:
            frames += chunks.delta(choice.index, _fields(delta), logprobs, extras)
            logprobs, extras = None, {}
        return frames

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        rendered: dict[str, Any] = {
            "index": index,
            "message": rendered_message(choice.message),
            "logprobs": self.token_text.chat_logprobs(choice.logprobs) if self.with_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.with_token_ids:
            rendered["token_ids"] = choice.token_ids
        return rendered


@dataclass
class _Choice(CollectedSequence):
    """One choice's tokens, and the message that they make."""

    message: ChatMessage = field(default_factory=ChatMessage)

    def take(self, choice: ChoiceDelta) -> None:
        self.add(choice.tokens)
        self.message.add(choice.deltas)
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason


def rendered_message(message: ChatMessage) -> dict[str, Any]:
    """An assistant's message in the form of chat completions. Where it only calls tools, its content is null."""
    rendered: dict[str, Any] = {"role": "assistant", "content": message.content or (None if message.tool_calls else ""), "refusal": None}
    if message.reasoning:
        rendered |= _fields(Reasoning(message.reasoning))
    if message.tool_calls:
        rendered["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
        ]
    return rendered


def _chunk(chunks: ChunkWriter, index: int, delta: Delta) -> bytes:
    if type(delta) is Content:
        return chunks.text(index, delta.text)
    return chunks.delta(index, _fields(delta), None, {})


def _fields(delta: Delta) -> dict[str, Any]:
    """The fields of a chunk's `delta`."""
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text, "reasoning": text}  # the two names under which clients look for it
        case ToolCallStart(index, id, name):
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}
        case ToolArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

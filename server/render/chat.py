"""Answers of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from engine.outputs import CompletionOutput
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
    include_usage: bool = False
    continuous_usage: bool = False

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The frames of a stream. Raises what the generation raises."""
        head = self._head("chat.completion.chunk")
        running = (lambda: self._usage(generation)) if self.continuous_usage else None
        chunks = ChunkWriter(head, "content", self.include_usage, running)
        top_level = {"prompt_token_ids": generation.prompt_token_ids} if self.with_token_ids else {}
        yield b"".join(chunks.role(index, top_level) for index in range(self.n))
        rich = self.with_logprobs or self.with_token_ids
        async for output in generation:
            frames = b""
            for sequence in output.outputs:
                if rich:
                    frames += self._rich_chunk(chunks, sequence)
                elif sequence.text:
                    frames += chunks.text(sequence.index, sequence.text)
                if sequence.finish_reason is not None:
                    frames += chunks.final(sequence.index, sequence.finish_reason, sequence.stop_reason)
            if frames:
                yield frames
        if self.include_usage:
            yield chunks.usage(self._usage(generation))
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The answer as one object. Raises what the generation raises."""
        choices = [CollectedSequence() for _ in range(self.n)]
        prompt_logprobs = None
        async for output in generation:
            if output.prompt_logprobs is not None:
                prompt_logprobs = self.token_text.prompt_logprobs(output.prompt_logprobs)
            for sequence in output.outputs:
                choices[sequence.index].add(sequence)
        answer = {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": self._usage(generation),
        }
        if prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs
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

    def _usage(self, generation: Generation) -> dict[str, Any]:
        return usage(len(generation.prompt_token_ids), generation.completion_tokens, generation.cached_tokens)

    def _rich_chunk(self, chunks: ChunkWriter, sequence: CompletionOutput) -> bytes:
        if not sequence.text and not sequence.token_ids:
            return b""
        logprobs = self.token_text.chat_logprobs(sequence.logprobs) if self.with_logprobs and sequence.logprobs else None
        extras = {"token_ids": sequence.token_ids} if self.with_token_ids else {}
        return chunks.rich_text(sequence.index, sequence.text, logprobs, extras)

    def _choice(self, index: int, choice: CollectedSequence) -> dict[str, Any]:
        rendered: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self.token_text.chat_logprobs(choice.logprobs) if self.with_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.with_token_ids:
            rendered["token_ids"] = choice.token_ids
        return rendered

"""Answers of POST /v1/completions: the older form, with several prompts, echo, and log probabilities in parallel lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from server.generation import Generation
from server.render.chunks import ChunkWriter
from server.render.collect import CollectedSequence
from server.render.tokens import CompletionLogprobs, TokenText, usage
from server.sse import DONE


@dataclass(frozen=True)
class CompletionAnswer:
    """What all answers to one completion request have in common. Choice p * n + s is sample s of prompt p."""

    id: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str
    n: int
    token_text: TokenText
    logprobs: int | None  # how many alternatives to list; None: no log probabilities
    echoed: list[str] | None  # the prompts' texts, when they are to be repeated
    with_token_ids: bool
    with_prompt_logprobs: bool
    only_prompt: bool  # max_tokens is 0: the one token that the engine makes is not shown
    include_usage: bool = False
    continuous_usage: bool = False

    async def stream(self, generations: list[Generation]) -> AsyncIterator[bytes]:
        """The frames of a stream. Raises what a generation raises."""
        choices = self._new_choices(generations)
        running = (lambda: self._usage(generations, sum(choice.num_shown for choice in choices))) if self.continuous_usage else None
        chunks = ChunkWriter(self._head(), "text", self.include_usage, running)
        async with aclosing(merge(generations)) as outputs:  # type: ignore[type-var]
            async for prompt_index, output in outputs:
                frames = b""
                for sequence in output.outputs:
                    index = prompt_index * self.n + sequence.index
                    frames += self._chunk(chunks, choices[index], index, output, sequence)
                if frames:
                    yield frames
        if self.include_usage:
            yield chunks.usage(self._usage(generations))
        yield DONE

    async def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """The answer as one object. Raises what a generation raises."""
        choices = self._new_choices(generations)
        prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
        async with aclosing(merge(generations)) as outputs:  # type: ignore[type-var]
            async for prompt_index, output in outputs:
                if output.prompt_logprobs is not None:
                    prompt_logprobs[prompt_index] = output.prompt_logprobs
                for sequence in output.outputs:
                    choices[prompt_index * self.n + sequence.index].add(sequence)
        rendered = [
            self._choice(index, choice, generations[index // self.n], prompt_logprobs.get(index // self.n))
            for index, choice in enumerate(choices)
        ]
        return {**self._head(), "choices": rendered, "usage": self._usage(generations)}

    def _new_choices(self, generations: list[Generation]) -> list[_Choice]:
        return [_Choice(writer=CompletionLogprobs(self.token_text, self.logprobs or 0)) for _ in range(self.n * len(generations))]

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    def _usage(self, generations: list[Generation], num_shown: int | None = None) -> dict[str, Any]:
        """The usage at the end, or once `num_shown` tokens have been sent."""
        num_completed = sum(generation.completion_tokens for generation in generations) if num_shown is None else num_shown
        return usage(
            sum(len(generation.prompt_token_ids) for generation in generations),
            0 if self.only_prompt else num_completed,
            sum(generation.cached_tokens for generation in generations),
        )

    def _chunk(self, chunks: ChunkWriter, choice: _Choice, index: int, output: RequestOutput, sequence: CompletionOutput) -> bytes:
        frames = b""
        prompt_ids = output.prompt_token_ids
        if not choice.begun:
            choice.begun = True
            extras = {"prompt_token_ids": prompt_ids, "token_ids": []} if self.with_token_ids else {}
            if self.echoed is not None:
                text = self.echoed[index // self.n]
                logprobs = self._echoed_logprobs(choice, text, prompt_ids, output.prompt_logprobs)
                frames += chunks.rich_text(index, text, logprobs, extras)
            elif extras:
                frames += chunks.rich_text(index, "", None, extras)
        choice.num_shown += len(sequence.token_ids)
        if not self.only_prompt and (sequence.text or (sequence.token_ids and (self.with_token_ids or sequence.logprobs))):
            if self.logprobs is None and not self.with_token_ids:
                frames += chunks.text(index, sequence.text)
            else:
                logprobs = choice.writer.render(sequence.token_ids, sequence.logprobs) if sequence.logprobs else None
                frames += chunks.rich_text(index, sequence.text, logprobs, {"token_ids": sequence.token_ids} if self.with_token_ids else {})
        if sequence.finish_reason is not None:
            frames += chunks.final(index, sequence.finish_reason, sequence.stop_reason)
        return frames

    def _choice(
        self, index: int, choice: _Choice, generation: Generation, prompt_logprobs: list[TokenLogprobs | None] | None
    ) -> dict[str, Any]:
        prompt_ids = generation.prompt_token_ids
        text, logprobs = "", None
        if self.echoed is not None:
            text = self.echoed[index // self.n]
            logprobs = self._echoed_logprobs(choice, text, prompt_ids, prompt_logprobs)
        if not self.only_prompt:
            text += choice.text
            if self.logprobs is not None:
                generated = choice.writer.render(choice.token_ids, choice.logprobs)
                logprobs = generated if logprobs is None else _joined(logprobs, generated)
        rendered: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.with_prompt_logprobs and prompt_logprobs is not None:
            rendered["prompt_logprobs"] = self.token_text.prompt_logprobs(prompt_logprobs)
        if self.with_token_ids:
            rendered["prompt_token_ids"] = prompt_ids
            rendered["token_ids"] = [] if self.only_prompt else choice.token_ids
        return rendered

    def _echoed_logprobs(
        self, choice: _Choice, text: str, prompt_ids: list[int], positions: list[TokenLogprobs | None] | None
    ) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        if positions is None:
            choice.writer.skip(text)
            return None
        literal = TokenText(self.token_text.tokenizer, skip_special_tokens=False)
        first = literal.bytes_of(prompt_ids[0])
        # A BOS that the tokenizer put in front is no part of the text; special tokens that the prompt spells out are.
        first_bytes = first if text.encode().startswith(first) else b""
        writer = CompletionLogprobs(literal, self.logprobs)
        rendered = writer.render(prompt_ids, positions, first_bytes)
        choice.writer.skip(text)
        return rendered


async def merge(generations: list[Generation]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The outputs of several generations as they come, each with its generation's index. The first error ends all."""
    if len(generations) == 1:
        async for output in generations[0]:
            yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | None, Exception | None]] = asyncio.Queue()

    async def read(index: int) -> None:
        try:
            async for output in generations[index]:
                queue.put_nowait((index, output, None))
            queue.put_nowait((index, None, None))
        except Exception as error:
            queue.put_nowait((index, None, error))

    readers = [asyncio.ensure_future(read(index)) for index in range(len(generations))]
    try:
        left = len(readers)
        while left:
            index, item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


@dataclass
class _Choice(CollectedSequence):
    """One sequence, and where the log probabilities of its next tokens stand in its text."""

    writer: CompletionLogprobs = field(kw_only=True)
    begun: bool = False
    num_shown: int = 0  # tokens in the chunks so far


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: first[name] if first[name] is None else first[name] + second[name] for name in first}

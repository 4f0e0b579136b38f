"""A generation as typed deltas of chat messages: what every API that answers with messages encodes in its own way."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Literal, TypeAlias

import msgspec

from engine.chat.deltas import Delta, MessageParser, PlainText, ToolArguments, ToolCallStart
from engine.outputs import CompletionOutput, RequestOutput

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class ChoiceDelta(msgspec.Struct):
    """What is new in one choice."""

    index: int  # of the choice, 0 to n - 1
    deltas: list[Delta]  # may be empty: tokens may say nothing yet
    tokens: CompletionOutput  # token ids, log probabilities and stop_reason; its text is what the deltas were read from
    finish_reason: FinishReason | None  # given with the choice's last delta


class MessageDeltas:
    """An async iterator over a generation, each step with the choices that have something new. Raises what the generation raises."""

    def __init__(self, generation: AsyncIterable[RequestOutput], n: int, new_parser: Callable[[], MessageParser] = PlainText) -> None:
        self._generation = generation
        self._parsers = [new_parser() for _ in range(n)]
        self._arguments: list[list[str] | None] = [None] * n  # of the latest call, in pieces; None: there is no call

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of all choices so far that were reasoning."""
        return sum([parser.reasoning_tokens for parser in self._parsers])

    async def __aiter__(self) -> AsyncIterator[list[ChoiceDelta]]:
        async for output in self._generation:
            yield [self._read(sequence) for sequence in output.outputs]

    def _read(self, sequence: CompletionOutput) -> ChoiceDelta:
        index, finish_reason = sequence.index, sequence.finish_reason
        parser = self._parsers[index]
        deltas = parser.feed(sequence.text, sequence.token_ids)
        if finish_reason is not None:
            deltas = [*deltas, *parser.finish()]
        for delta in deltas:
            if type(delta) is ToolCallStart:
                self._arguments[index] = []
            elif type(delta) is ToolArguments:
                pieces = self._arguments[index]
                assert pieces is not None
                pieces.append(delta.text)
        if finish_reason == "stop" and self._calls_whole(index, sequence):
            return ChoiceDelta(index, deltas, sequence, "tool_calls")
        # The generation has raised for all other reasons.
        return ChoiceDelta(index, deltas, sequence, finish_reason)  # type: ignore[arg-type]

    def _calls_whole(self, index: int, sequence: CompletionOutput) -> bool:
        """Whether the choice ends in a call that can be made: a stop string may have cut its arguments."""
        pieces = self._arguments[index]
        if pieces is None or not isinstance(sequence.stop_reason, str):
            return pieces is not None
        try:
            msgspec.json.decode("".join(pieces))
        except msgspec.DecodeError:
            return False
        return True

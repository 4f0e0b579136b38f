"""The seam between a generation and what is answered of it: typed deltas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from collections.abc import Sequence as SequenceOf

from engine.chat.deltas import Content, Delta, Reasoning, ToolArguments, ToolCallStart
from engine.chat.message import ChatMessage
from engine.outputs import CompletionOutput, RequestOutput
from server.chat.deltas import ChoiceDelta, MessageDeltas
from server.render.chat import rendered_message

STEPS: list[list[Delta]] = [[Reasoning("hm")], [Content("I look. ")], [ToolCallStart(0, "call_1", "look")], [ToolArguments(0, "{}")]]


class Scripted:
    """A parser that says one thing after the other."""

    def __init__(self) -> None:
        self.reasoning_tokens = 1
        self._steps = iter(STEPS)

    def feed(self, text: str, token_ids: SequenceOf[int]) -> list[Delta]:
        return next(self._steps)

    def finish(self) -> list[Delta]:
        return [ToolArguments(0, " ")]


async def _outputs(n: int, finish_reason: str) -> AsyncIterator[RequestOutput]:
    for step in range(len(STEPS)):
        ends = step == len(STEPS) - 1
        sequences = [CompletionOutput(index, "x", [7], finish_reason=finish_reason if ends else None) for index in range(n)]  # type: ignore[arg-type]
        yield RequestOutput("r", [1], sequences, finished=ends)


def _read(messages: MessageDeltas) -> list[ChoiceDelta]:
    async def read() -> list[ChoiceDelta]:
        return [choice async for choices in messages for choice in choices]

    return asyncio.run(read())


def test_text_is_content_where_no_parser_is_given() -> None:
    choices = _read(MessageDeltas(_outputs(1, "stop"), 1))
    assert [choice.deltas for choice in choices] == [[Content("x")]] * len(STEPS)
    assert [choice.finish_reason for choice in choices] == [None] * (len(STEPS) - 1) + ["stop"]


def test_each_choice_has_a_parser_of_its_own_and_one_that_called_tools_finishes_with_tool_calls() -> None:
    messages = MessageDeltas(_outputs(2, "stop"), 2, Scripted)
    choices = _read(messages)
    for index in range(2):
        mine = [choice for choice in choices if choice.index == index]
        assert [delta for choice in mine for delta in choice.deltas] == [*(step[0] for step in STEPS), ToolArguments(0, " ")]
        assert mine[-1].finish_reason == "tool_calls"
    assert messages.reasoning_tokens == 2


def test_a_call_that_ran_out_of_tokens_finishes_with_length() -> None:
    assert _read(MessageDeltas(_outputs(1, "length"), 1, Scripted))[-1].finish_reason == "length"


def test_a_whole_message_is_what_its_deltas_come_to() -> None:
    message = ChatMessage()
    for step in STEPS:
        message.add(step)
    rendered = rendered_message(message)
    assert (rendered["content"], rendered["reasoning_content"], rendered["reasoning"]) == ("I look. ", "hm", "hm")
    assert json.loads(json.dumps(rendered["tool_calls"])) == [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ]


def test_a_message_that_only_calls_tools_has_null_content_and_an_empty_one_has_an_empty_string() -> None:
    message = ChatMessage()
    assert rendered_message(message)["content"] == ""
    message.add([ToolCallStart(0, "call_1", "look")])
    assert rendered_message(message)["content"] is None

"""The events of an Anthropic message add up to the message, as its SDK adds them up, however the deltas were cut."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.chat.deltas import Content, Delta, Reasoning, ToolArguments, ToolCallStart
from server.render.messages import MessageBuilder

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE = {"input_tokens": 1, "output_tokens": 2}
DELTAS: list[Delta] = [Reasoning("Hm"), Reasoning("m."), Content("A"), Content("B"), ToolCallStart(0, "toolu_1", "f")]
DELTAS += [ToolArguments(0, '{"a":'), ToolArguments(0, "1}"), ToolCallStart(1, "toolu_2", "g")]


def _build(steps: list[list[Delta]]) -> tuple[dict[str, Any], list[Any]]:
    """The message, and its events as the SDK reads them."""
    events: list[Any] = []
    empty = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "usage": USAGE}
    builder = MessageBuilder(empty, lambda event: events.append(copy.deepcopy(event)))
    for deltas in steps:
        builder.take(deltas)
    builder.end("tool_use", None, USAGE)
    return builder.message, [EVENT.validate_python(event) for event in events if event["type"] != "ping"]


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, len(DELTAS) - 1)))
def test_the_sdk_adds_the_events_up_to_the_message(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(DELTAS)]
    message, events = _build([DELTAS[start:end] for start, end in pairwise(places)])
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    summed = Message.model_validate(snapshot.model_dump(exclude={"content": {"__all__": {"parsed_output"}}}))
    assert summed == Message.model_validate(message)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "AB"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ]


def test_each_block_is_opened_filled_and_closed_before_the_next() -> None:
    _, events = _build([DELTAS])
    assert [(event.type, getattr(event, "index", None)) for event in events] == [
        ("message_start", None),
        *[("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0), ("content_block_stop", 0)],
        *[("content_block_start", 1), ("content_block_delta", 1), ("content_block_delta", 1), ("content_block_stop", 1)],
        *[("content_block_start", 2), ("content_block_delta", 2), ("content_block_delta", 2), ("content_block_stop", 2)],
        *[("content_block_start", 3), ("content_block_stop", 3)],
        ("message_delta", None),
        ("message_stop", None),
    ]


def test_arguments_that_are_no_object_are_wrapped() -> None:
    for text in ("[1]", "{broken"):
        message, _ = _build([[ToolCallStart(0, "toolu_1", "f"), ToolArguments(0, text)]])
        assert message["content"][0]["input"] == {"INVALID_JSON": text}


def test_an_answer_without_a_word_has_no_blocks() -> None:
    message, events = _build([[]])
    assert message["content"] == []
    assert [event.type for event in events] == ["message_start", "message_delta", "message_stop"]

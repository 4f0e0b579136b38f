"""The events of a response add up to the response, each as the SDK's types have it, however the deltas were cut."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engine.chat.deltas import Content, Delta, Reasoning, ToolArguments, ToolCallStart
from engine.sampling_params import SamplingParams
from server.errors import ApiError
from server.protocol.responses import ResponsesRequest
from server.render.response_object import new_response
from server.render.responses import ResponseBuilder

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
}
THOUGHT: list[Delta] = [
    Reasoning("Hm"),
    Reasoning("m."),
    Content("A"),
    Content("B"),
    ToolCallStart(0, "call_1", "f"),
    ToolArguments(0, "{"),
]
THOUGHT += [ToolArguments(0, "}"), ToolCallStart(1, "call_2", "tools__g"), ToolArguments(1, "[]")]


def _build(steps: list[list[Delta]], status: Any = "completed") -> tuple[dict[str, Any], list[Any]]:
    """The response, and its events as the SDK reads them."""
    events: list[Any] = []
    response = new_response("resp_" + "0" * 32, 1, "model", ResponsesRequest(input="Hello"), SamplingParams())
    builder = ResponseBuilder(response, lambda event: events.append(copy.deepcopy(event)), {"tools__g": ("tools", "g")})
    builder.open()
    for deltas in steps:
        builder.take(deltas, ())
    builder.end(status, USAGE)
    builder.conclude()
    Response.model_validate(response)
    return response, [EVENT.validate_python(event) for event in events]


def test_reasoning_text_and_calls_are_items_of_their_own_in_the_order_of_the_message() -> None:
    response, events = _build([THOUGHT])
    reasoning, message, first, second = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert message["content"][0]["text"] == "AB"
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_1", "f", "{}")
    assert (second["call_id"], second["namespace"], second["name"], second["arguments"]) == ("call_2", "tools", "g", "[]")
    assert len({item["id"] for item in response["output"]}) == 4
    kinds = [event.type.removeprefix("response.") for event in events]
    added, done, part_added, part_done = "output_item.added", "output_item.done", "content_part.added", "content_part.done"
    call = [added, "function_call_arguments.delta", "function_call_arguments.done", done]
    assert kinds == [
        *("created", "in_progress"),
        *(added, part_added, "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", part_done, done),
        *(added, part_added, "output_text.delta", "output_text.delta", "output_text.done", part_done, done),
        *(*call[:2], *call[1:]),
        *call,
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, len(THOUGHT) - 1)))
def test_how_deltas_come_together_changes_nothing(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(THOUGHT)]
    cut = _build([THOUGHT[start:end] for start, end in pairwise(places)])
    whole = _build([THOUGHT])
    assert {**cut[0], "completed_at": 0} == {**whole[0], "completed_at": 0}
    assert [event.type for event in cut[1]] == [event.type for event in whole[1]]


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    response, events = _build([[]])
    assert [part["text"] for item in response["output"] for part in item["content"]] == [""]
    assert [event.type for event in events][-2:] == ["response.output_item.done", "response.completed"]


def test_a_call_that_the_limit_cut_is_incomplete_and_those_before_it_are_not() -> None:
    response, _ = _build([THOUGHT], status="incomplete")
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "completed", "incomplete"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_what_there_is_of_a_response_that_ends_early_is_kept(end: str) -> None:
    events: list[Any] = []
    response = new_response("resp_" + "0" * 32, 1, "model", ResponsesRequest(input="Hello"), SamplingParams())
    builder = ResponseBuilder(response, events.append, {})
    builder.open()
    builder.take([Content("A")], ())
    builder.fail(ApiError(503, "gone")) if end == "fail" else builder.cancel()
    assert response["output"][0]["content"][0]["text"] == "A"
    assert (response["output"][0]["status"], response["status"]) == ("incomplete", "failed" if end == "fail" else "cancelled")
    Response.model_validate(response)

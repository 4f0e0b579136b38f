"""What the official Python package of Anthropic adds to plain requests: raw responses, its stream's events, its async half, errors.

What it says of messages, tools, thinking and structure is in test_messages.py, test_translated_tools.py and test_translated_structure.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from live_server import RunningServer

MODEL = "SmolLM2-135M-Instruct"
SEA: list[Any] = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": SEA, "extra_body": {"temperature": 0}, "max_tokens": 12}
ENDLESS: dict[str, Any] = {**GREEDY, "extra_body": {"structured_outputs": {"regex": "[a-z]{900}"}}, "max_tokens": 900}
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"]},
}
CALL: dict[str, Any] = {**GREEDY, "max_tokens": 60, "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def later(server: RunningServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_headers_are_at_hand_and_the_body_parses_to_the_same(claude: anthropic.Anthropic) -> None:
    raw = claude.messages.with_raw_response.create(**GREEDY)
    message = raw.parse()
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == message._request_id
    assert message.content == claude.messages.create(**GREEDY).content
    with claude.messages.with_streaming_response.create(**GREEDY) as response:
        assert json.loads(response.read())["content"][0]["text"] == message.content[0].text  # type: ignore[union-attr]


def test_the_helpers_events_tell_of_the_text_and_of_the_whole(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(**GREEDY) as stream:
        events: list[Any] = list(stream)
    final = stream.get_final_message()
    assert "".join(event.text for event in events if event.type == "text") == stream.get_final_text()
    assert [event.message.content for event in events if event.type == "message_stop"] == [final.content]
    assert final.usage.output_tokens == 12


def test_the_helpers_events_tell_of_a_calls_input_as_it_grows(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(**CALL) as stream:
        events: list[Any] = list(stream)
    grown = [event for event in events if event.type == "input_json"]
    (call,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert json.loads("".join(event.partial_json for event in grown)) == call.input
    assert grown[-1].snapshot == call.input
    assert stream.get_final_message().stop_reason == "tool_use"


async def test_the_async_client_does_the_same_many_times_at_once(later: anthropic.AsyncAnthropic, claude: anthropic.Anthropic) -> None:
    text = claude.messages.create(**GREEDY).content

    async def streamed() -> Any:
        async with later.messages.stream(**GREEDY) as stream:
            pieces = [piece async for piece in stream.text_stream]
            assert "".join(pieces) == await stream.get_final_text()
            return (await stream.get_final_message()).content

    async def plain() -> Any:
        events = [event async for event in await later.messages.create(**GREEDY, stream=True)]
        assert events[-1].type == "message_stop"
        return (await later.messages.create(**GREEDY)).content

    found = await asyncio.gather(*(streamed() for _ in range(3)), *(plain() for _ in range(3)))
    assert [[block.text for block in content] for content in found] == [[text[0].text]] * 6  # type: ignore[union-attr]


async def test_the_async_runner_calls_functions(later: anthropic.AsyncAnthropic) -> None:
    called: list[str] = []

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather in a city

        Args:
            city: its name
        """
        called.append(city)
        return "Sunny"

    choice: Any = {"type": "tool", "name": "get_weather"}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = {"model": MODEL, "max_tokens": 60, "messages": question, "tool_choice": choice, "extra_body": {"temperature": 0}}
    runner = later.beta.messages.tool_runner(**asked, tools=[get_weather], max_iterations=1)  # type: ignore[call-overload]
    assert [message.stop_reason async for message in runner] == ["tool_use"]
    assert called


async def test_a_cancelled_task_stops_the_work(later: anthropic.AsyncAnthropic, server: RunningServer) -> None:
    task = asyncio.create_task(later.messages.create(**ENDLESS))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(server.wait_until_idle, 3)


def test_the_clients_own_timeout_is_its_own_error(claude: anthropic.Anthropic, server: RunningServer) -> None:
    with pytest.raises(anthropic.APITimeoutError):
        claude.with_options(timeout=0.4).messages.create(**ENDLESS)
    server.wait_until_idle(3)


def test_models_are_listed_for_it_too(claude: anthropic.Anthropic) -> None:
    assert [model.id for model in claude.models.list().data] == [MODEL]


async def test_errors_of_the_async_client_are_of_the_same_classes(later: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await later.messages.create(**{**GREEDY, "extra_body": {"temperature": 1000}})
    with pytest.raises(anthropic.NotFoundError):
        await later.messages.count_tokens(model="claude-opus-5", messages=SEA)

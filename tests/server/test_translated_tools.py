"""Tools in /v1/responses and /v1/messages: chat's, in the words of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from live_server import RunningServer

MODEL = "SmolLM2-135M-Instruct"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = "What is the weather in Paris?"
FLAT: list[Any] = [{"type": "function", "name": "get_weather", "description": "Weather in a city", "parameters": SCHEMA}]
TOOLS: list[Any] = [{"name": "get_weather", "description": "Weather in a city", "input_schema": SCHEMA}]

RESPONSE: dict[str, Any] = {"model": MODEL, "input": QUESTION, "tools": FLAT, "temperature": 0, "max_output_tokens": 60}
MESSAGE: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "tools": TOOLS,
    "extra_body": {"temperature": 0},
    "max_tokens": 60,
}


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


class TestResponses:
    @pytest.mark.parametrize(
        "choice",
        [
            "required",
            {"type": "function", "name": "get_weather"},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
        ],
        ids=str,
    )
    def test_a_call_is_an_item_whose_arguments_validate(self, client: openai.OpenAI, choice: Any) -> None:
        response = client.responses.create(**RESPONSE, tool_choice=choice)
        (call,) = response.output
        assert call.type == "function_call"
        assert (call.name, call.status, response.status) == ("get_weather", "completed", "completed")
        jsonschema.validate(json.loads(call.arguments), SCHEMA)

    def test_its_events_add_up_to_it(self, client: openai.OpenAI) -> None:
        events: list[Any] = list(client.responses.create(**RESPONSE, tool_choice="required", stream=True))
        kinds = [event.type.removeprefix("response.") for event in events]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert kinds == [
            *("created", "in_progress", "output_item.added"),
            *["function_call_arguments.delta"] * len(deltas),
            *("function_call_arguments.done", "output_item.done", "completed"),
        ]
        whole: Any = client.responses.create(**RESPONSE, tool_choice="required").output[0]
        (done,) = events[-1].response.output
        assert "".join(deltas) == done.arguments == whole.arguments

    def test_what_the_function_returned_goes_back_either_way(self, client: openai.OpenAI) -> None:
        first = client.responses.create(**RESPONSE, tool_choice="required")
        call: Any = first.output[0]
        returned = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 25 degrees"}
        chained = client.responses.create(**{**RESPONSE, "input": [returned]}, previous_response_id=first.id)
        items: list[Any] = [{"role": "user", "content": QUESTION}, call.model_dump(), returned]
        stateless = client.responses.create(**{**RESPONSE, "input": items})
        assert chained.output_text == stateless.output_text != ""

    def test_a_function_of_a_namespace_is_called_as_that(self, client: openai.OpenAI) -> None:
        space: Any = {"type": "namespace", "name": "world", "description": "The world", "tools": FLAT}
        first = client.responses.create(**{**RESPONSE, "tools": [space]}, tool_choice="required")
        call: Any = first.output[0]
        assert (call.namespace, call.name) == ("world", "get_weather")
        items: list[Any] = [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}]
        assert client.responses.create(**{**RESPONSE, "tools": [space], "input": [*items]}).output

    def test_errors_speak_of_what_was_sent(self, http: httpx.Client) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
            ({"tools": [{**FLAT[0], "parameters": {"type": 5}}]}, "tools.0.parameters"),
            ({"tools": FLAT, "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice.name"),
            ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input.0.call_id"),
        ]
        for body, param in cases:
            answer = http.post("/v1/responses", json={"input": "x", **body})
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == param
            assert error["message"].startswith(param.removesuffix(".call_id"))


class TestMessages:
    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=str)
    def test_a_call_is_a_block_whose_input_validates(self, claude: anthropic.Anthropic, choice: Any) -> None:
        message = claude.messages.create(**MESSAGE, tool_choice=choice)
        (block,) = message.content
        assert block.type == "tool_use"
        assert (block.name, message.stop_reason) == ("get_weather", "tool_use")
        jsonschema.validate(block.input, SCHEMA)
        with claude.messages.stream(**MESSAGE, tool_choice=choice) as stream:
            final = stream.get_final_message()
        assert [(one.name, one.input) for one in final.content if one.type == "tool_use"] == [(block.name, block.input)]
        assert final.stop_reason == "tool_use"

    def test_results_go_back_as_blocks(self, claude: anthropic.Anthropic) -> None:
        first = claude.messages.create(**MESSAGE, tool_choice={"type": "any"})
        call: Any = first.content[0]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny, 25 degrees"}]}
        turns = [*MESSAGE["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        answer = claude.messages.create(**{**MESSAGE, "messages": turns})
        assert answer.content
        with pytest.raises(anthropic.BadRequestError, match="tool_result blocks must follow"):
            claude.messages.create(**{**MESSAGE, "messages": turns[:2]})
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0 has the role tool"):
            claude.messages.create(**{**MESSAGE, "messages": turns[2:]})

    def test_the_runner_calls_functions_until_there_is_an_answer(self, claude: anthropic.Anthropic) -> None:
        called: list[str] = []

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """Weather in a city

            Args:
                city: its name
            """
            called.append(city)
            return "Sunny"

        runner = claude.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=60,
            messages=MESSAGE["messages"],
            tools=[get_weather],
            tool_choice={"type": "tool", "name": "get_weather"},
            max_iterations=2,
        )
        messages = list(runner)
        assert called
        assert messages[0].stop_reason == "tool_use"

    def test_errors_speak_of_what_was_sent(self, http: httpx.Client) -> None:
        for tools, named in (
            ([{**TOOLS[0], "name": "a b"}], "tools.0.name"),
            ([{**TOOLS[0], "input_schema": {"type": 5}}], "tools.0.input_schema"),
        ):
            answer = http.post("/v1/messages", json={"messages": MESSAGE["messages"], "max_tokens": 2, "tools": tools})
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(named)

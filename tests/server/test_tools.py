"""Tools over HTTP, with the default model, whose template knows none."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

MODEL = "SmolLM2-135M-Instruct"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]},
    },
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, TIME)}
ASKING: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER, TIME],
    "temperature": 0,
    "max_tokens": 80,
}
NAMED = {"type": "function", "function": {"name": "get_time"}}
ONLY_TIME = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def _ask(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**ASKING, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _stream(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    response = http.post("/v1/chat/completions", json={**ASKING, "stream": True, **body})
    assert response.status_code == 200, response.text
    frames = [frame[6:] for frame in response.text.split("\n\n") if frame.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def _calls(answer: dict[str, Any], index: int = 0) -> list[tuple[str, Any]]:
    """The calls of a choice, their arguments validated."""
    calls = []
    for call in answer["choices"][index]["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, SCHEMAS[call["function"]["name"]])
        assert call["type"] == "function"
        calls.append((call["function"]["name"], arguments))
    return calls


class TestChoice:
    def test_required_is_a_valid_call_and_nothing_else(self, http: httpx.Client) -> None:
        answer = _ask(http, tool_choice="required")
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert len(_calls(answer)) == 1
        assert choice["message"]["tool_calls"][0]["id"].startswith("call_")
        assert answer["usage"]["completion_tokens"] > 5

    def test_required_is_valid_at_any_temperature(self, http: httpx.Client) -> None:
        answer = _ask(http, tool_choice="required", temperature=1.3, n=8, seed=3, max_tokens=200)
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls"] * 8
        assert all(_calls(answer, index) for index in range(8))

    def test_a_named_function_is_called_once(self, http: httpx.Client) -> None:
        answer = _ask(http, tool_choice=NAMED)
        assert [name for name, _ in _calls(answer)] == ["get_time"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"

    def test_only_allowed_tools_are_called(self, http: httpx.Client) -> None:
        assert {name for name, _ in _calls(_ask(http, tool_choice=ONLY_TIME))} == {"get_time"}

    def test_none_makes_no_calls_and_shows_the_model_no_tools(self, http: httpx.Client) -> None:
        answer = _ask(http, tool_choice="none", max_tokens=8)
        assert "tool_calls" not in answer["choices"][0]["message"]
        plain = _ask(http, tools=None, max_tokens=8)
        assert answer["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
        assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] < _ask(http, max_tokens=1)["usage"]["prompt_tokens"]

    def test_auto_may_answer_in_words(self, http: httpx.Client) -> None:
        choice = _ask(http, max_tokens=8)["choices"][0]
        assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("length", False)
        assert choice["message"]["content"]

    def test_auto_calls_when_the_model_does(self, http: httpx.Client) -> None:
        # The default model seldom calls by itself, but it does as it has done before.
        messages: list[dict[str, Any]] = []
        for number, city in enumerate(["Rome", "Oslo", "Lima"]):
            arguments = json.dumps({"city": city, "unit": "celsius", "days": 1})
            call = {"id": str(number), "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
            messages += [
                {"role": "user", "content": f"What is the weather in {city}?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": str(number), "content": "Sunny"},
                {"role": "assistant", "content": "Sunny."},
            ]
        answer = _ask(http, messages=[*messages, *ASKING["messages"]])
        assert _calls(answer) == [("get_weather", {"city": "Paris", "unit": "celsius", "days": 1})]
        assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == (None, "tool_calls")

    def test_a_strict_function_leaves_the_answer_free_and_its_calls_valid(self, http: httpx.Client) -> None:
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        choice = _ask(http, tools=[strict], max_tokens=8)["choices"][0]
        assert choice["message"]["content"] or choice["message"]["tool_calls"]

    def test_with_a_response_format_the_answer_is_calls_or_what_the_format_says(self, http: httpx.Client) -> None:
        schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"], "additionalProperties": False}
        format = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
        seen = set()
        for choice in _ask(http, response_format=format, temperature=1.5, n=16, seed=5)["choices"]:
            seen.add(choice["finish_reason"])
            if choice["finish_reason"] == "stop":
                jsonschema.validate(json.loads(choice["message"]["content"]), schema)
            elif choice["finish_reason"] == "tool_calls":
                assert choice["message"]["content"] is None
        assert seen & {"stop", "tool_calls"}
        answer = _ask(http, response_format=format, tool_choice="required")
        assert _calls(answer)

    def test_a_call_that_runs_out_of_tokens_ends_with_length(self, http: httpx.Client) -> None:
        choice = _ask(http, tool_choice="required", max_tokens=16)["choices"][0]
        assert choice["finish_reason"] == "length"


class TestStreaming:
    @pytest.mark.parametrize("choice", ["required", NAMED])
    def test_the_stream_comes_to_the_same_as_the_whole(self, http: httpx.Client, choice: Any) -> None:
        whole = _ask(http, tool_choice=choice)["choices"][0]
        chunks = _stream(http, tool_choice=choice)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
        head, *rest = pieces
        assert set(head) == {"index", "id", "type", "function"}
        assert head["function"] == {"name": whole["message"]["tool_calls"][0]["function"]["name"], "arguments": ""}
        assert all(set(piece) == {"index", "function"} and piece["index"] == 0 for piece in rest)
        joined = "".join(piece["function"]["arguments"] for piece in rest)
        assert joined == whole["message"]["tool_calls"][0]["function"]["arguments"]
        assert len(rest) > 1, "arguments are not streamed"
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert "".join(delta.get("content") or "" for delta in deltas) == ""

    def test_choices_have_calls_of_their_own_with_log_probabilities_and_usage(self, http: httpx.Client) -> None:
        body = {"tool_choice": NAMED, "n": 2, "logprobs": True, "temperature": 1, "seed": 1, "stream_options": {"include_usage": True}}
        chunks = _stream(http, **body)
        usage = chunks.pop()["usage"]
        num_logprobs = 0
        for index in range(2):
            choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
            assert json.loads("".join(piece["function"]["arguments"] for piece in pieces))["zone"] in ("UTC", "CET")
            assert choices[-1]["finish_reason"] == "tool_calls"
            num_logprobs += sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"])
        assert num_logprobs == usage["completion_tokens"]

    def test_the_official_client_puts_the_call_together(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(**{**ASKING, "tool_choice": NAMED}) as stream:
            events = [event.type for event in stream]
            message = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.delta" in events
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.name == "get_time"


class TestConversations:
    def test_calls_and_their_results_go_back_to_the_model(self, http: httpx.Client) -> None:
        message = _ask(http, tool_choice=NAMED)["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Noon"}
        messages = [*ASKING["messages"], message, result]
        tokens = http.post("/tokenize", json={"messages": messages, "tools": [TIME]}).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        assert '<tool_call>\n{"name": "get_time", "arguments":' in text
        assert "<tool_response>\nNoon\n</tool_response>" in text
        assert _ask(http, messages=messages, tools=[TIME], max_tokens=4)["usage"]["prompt_tokens"] == len(tokens)

    def test_a_call_that_a_stop_string_has_cut_ends_with_stop_as_it_cannot_be_made(self, http: httpx.Client) -> None:
        choice = _ask(http, tool_choice=NAMED, stop=['"zone"'])["choices"][0]
        assert choice["stop_reason"] == '"zone"'
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{"
        assert choice["finish_reason"] == "stop"


def _tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [_tool(name="not a name")]}, "tools.0.function.name"),
        ({"tools": [_tool(name="")]}, "tools.0.function.name"),
        ({"tools": [_tool(name="f"), _tool(name="f")]}, "tools.1"),
        ({"tools": [_tool(name="f", parameters={"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [_tool(name="f", parameters={"properties": {"a": {"type": "text"}}})]}, "tools.0.function.parameters"),
        ({"tools": [_tool(name="f", parameters={"properties": {"a": 5}})]}, "tools.0.function.parameters"),
        ({"tools": [_tool(name=f"f{index}") for index in range(129)]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "tool_choice": "sometimes"}, "tool_choice"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"thinking_token_budget": 10}, "thinking_token_budget"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages.0.tool_call_id"),
        (
            {
                "tools": [_tool(name="f", parameters={"properties": {"a": {"type": "array", "uniqueItems": True}}})],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_by_its_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/chat/completions", json={**ASKING, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text


def test_tools_change_nothing_for_those_who_send_none(http: httpx.Client) -> None:
    plain = _ask(http, tools=None, max_tokens=8)
    assert plain["choices"] == _ask(http, tools=[], tool_choice="auto", parallel_tool_calls=True, max_tokens=8)["choices"]

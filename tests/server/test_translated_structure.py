"""Structured output and reasoning in /v1/responses and /v1/messages: chat's, in the words of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from live_server import RunningServer, running_server
from pydantic import BaseModel

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the weather in Paris?"
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]


class Weather(BaseModel):
    city: Literal["Paris", "London"]
    dry: bool


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that takes all for reasoning until that is closed, which the budget does."""
    with running_server(tmp_path_factory.mktemp("thinker"), "--reasoning-parser", "deepseek_r1") as running:
        running.wait_until_ready()
        yield running


class TestStructure:
    def test_responses_are_parsed_into_the_clients_types(self, client: openai.OpenAI) -> None:
        asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "text_format": Weather, "max_output_tokens": 60}
        response = client.responses.parse(**asked)
        assert isinstance(response.output_parsed, Weather)
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "json_schema"
        with client.responses.stream(**asked) as stream:
            parsed = [event.parsed for event in stream if event.type == "response.output_text.done"]
            assert [stream.get_final_response().output_parsed] == parsed
        assert isinstance(parsed[0], Weather)

    def test_messages_are_parsed_into_the_clients_types(self, claude: anthropic.Anthropic) -> None:
        asked: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_tokens": 60, "output_format": Weather}
        assert isinstance(claude.messages.parse(**asked).parsed_output, Weather)
        with claude.messages.stream(**asked) as stream:
            assert isinstance(stream.get_final_message().parsed_output, Weather)

    def test_both_take_what_other_servers_have_added(self, client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
        extra = {"structured_outputs": {"choice": ["wet", "dry"]}}
        assert client.responses.create(model=MODEL, input=QUESTION, extra_body=extra).output_text in ("wet", "dry")
        block: Any = claude.messages.create(model=MODEL, messages=TURNS, max_tokens=9, extra_body=extra).content[0]
        assert block.text in ("wet", "dry")

    def test_a_schema_that_cannot_be_enforced_is_named_as_it_was_sent(self, http: httpx.Client) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}
        format = {"type": "json_schema", "name": "x", "schema": schema}
        error = http.post("/v1/responses", json={"input": QUESTION, "text": {"format": format}}).json()["error"]
        assert error["param"] == "text.format"
        error = http.post("/v1/responses", json={"input": QUESTION, "text": {"format": {"type": "json_schema"}}}).json()["error"]
        assert error["param"] == "text.format.name"
        body = {"messages": TURNS, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        assert http.post("/v1/messages", json=body).status_code == 400


class TestReasoning:
    def test_a_response_has_an_item_of_reasoning(self, thinker: RunningServer) -> None:
        asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 30}
        asked["extra_body"] = {"thinking_token_budget": 8}
        with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.responses.create(**asked)
            events: list[Any] = list(client.responses.create(**asked, stream=True))
            continued = client.responses.create(**{**asked, "input": "Go on."}, previous_response_id=whole.id)
        reasoning, message = whole.output
        assert (reasoning.type, message.type) == ("reasoning", "message")
        assert reasoning.content
        assert whole.usage is not None
        assert 8 <= whole.usage.output_tokens_details.reasoning_tokens < 30
        assert [{**item.model_dump(), "id": ""} for item in events[-1].response.output] == [
            {**item.model_dump(), "id": ""} for item in whole.output
        ]
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == reasoning.content[0].text
        assert continued.output

    def test_a_message_has_a_block_of_thinking_unless_it_is_omitted(self, thinker: RunningServer) -> None:
        asked: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_tokens": 30, "extra_body": {"temperature": 0}}
        budget: dict[str, Any] = {"type": "enabled", "budget_tokens": 8}
        with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
            whole = client.messages.create(**asked, thinking=budget)
            with client.messages.stream(**asked, thinking=budget) as stream:
                streamed = stream.get_final_message()
            omitted = client.messages.create(**asked, thinking={**budget, "display": "omitted"})
        assert [block.type for block in whole.content] == ["thinking", "text"]
        assert [block.model_dump(exclude={"parsed_output"}) for block in streamed.content] == [
            block.model_dump() for block in whole.content
        ]
        assert whole.content[1:] == omitted.content
        turns = [*TURNS, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "Go on."}]
        with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
            assert client.messages.create(**{**asked, "messages": turns}, thinking=budget).content

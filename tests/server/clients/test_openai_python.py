"""The official Python package of OpenAI against the live server: its helpers, its raw responses, its errors, its async half.

What it says of single endpoints is in test_responses.py, test_batches.py, test_embeddings.py and test_tools.py.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Any, Literal

import openai
import pytest
from live_server import Guarded, RunningServer
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

MODEL = "SmolLM2-135M-Instruct"
SEA: list[Any] = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": SEA, "temperature": 0, "max_tokens": 12}
HI: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Say hi"}], "temperature": 0, "max_tokens": 60}
ENDLESS: dict[str, Any] = {**GREEDY, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
Short = Annotated[str, Field(max_length=6)]


@pytest.fixture(scope="module")
def whole(client: openai.OpenAI) -> ChatCompletion:
    """The greedy answer that many tests compare with."""
    return client.chat.completions.create(**GREEDY)


@pytest.fixture(scope="module")
def hi(client: openai.OpenAI) -> ChatCompletion:
    """One that ends by itself."""
    return client.chat.completions.create(**HI)


@pytest.fixture
async def later(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def _text(completion: ChatCompletion) -> str:
    return completion.choices[0].message.content or ""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: Annotated[int, Field(ge=0, le=99)]
    label: Short | None


class Flat(BaseModel):
    color: Color
    size: Literal["small", "large"]
    is_new: bool


class Nested(BaseModel):
    start: Point
    path: Annotated[list[Point], Field(max_length=1)]


class Dated(BaseModel):
    """With what is left to a format, and one of several shapes."""

    day: date
    what: Point | Color


class Tree(BaseModel):
    name: Annotated[str, Field(max_length=3)]
    child: Annotated[list[Tree], Field(max_length=1)]


class TestParse:
    @pytest.mark.parametrize("kind", [Flat, Nested, Dated])
    def test_every_pydantic_model_is_filled_in_at_any_temperature(self, client: openai.OpenAI, kind: type[BaseModel]) -> None:
        asked = {**GREEDY, "temperature": 1, "seed": 3, "max_tokens": 120}
        parsed = client.chat.completions.parse(**asked, response_format=kind).choices[0].message.parsed
        assert isinstance(parsed, kind)

    def test_a_recursive_model_is_filled_in_or_said_to_be_cut(self, client: openai.OpenAI) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "tree", "schema": Tree.model_json_schema()}}
        answer = client.chat.completions.create(**{**GREEDY, "max_tokens": 60}, response_format=schema).choices[0]  # type: ignore[arg-type]
        assert answer.finish_reason == "length" or Tree.model_validate_json(answer.message.content or "")

    def test_the_helper_streams_the_model_as_it_grows(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(**{**GREEDY, "max_tokens": 120}, response_format=Flat) as stream:
            events = list(stream)
        grown = [event.parsed for event in events if event.type == "content.delta"]
        assert grown[-1] == json.loads(next(event.content for event in events if event.type == "content.done"))
        done = stream.get_final_completion().choices[0].message.parsed
        assert isinstance(done, Flat)

    async def test_the_async_client_parses_both_endpoints(self, later: openai.AsyncOpenAI) -> None:
        chat, response = await asyncio.gather(
            later.chat.completions.parse(**{**GREEDY, "max_tokens": 120}, response_format=Flat),
            later.responses.parse(model=MODEL, input="Which?", max_output_tokens=120, temperature=0, text_format=Flat),
        )
        assert isinstance(chat.choices[0].message.parsed, Flat)
        assert isinstance(response.output_parsed, Flat)


class GetWeather(BaseModel):
    """Weather in a city"""

    city: Short
    unit: Color


class TestTools:
    TOOLS = (openai.pydantic_function_tool(GetWeather, name="get_weather"),)

    def test_a_call_is_parsed_into_the_pydantic_model(self, client: openai.OpenAI) -> None:
        asked = {**GREEDY, "max_tokens": 80, "tool_choice": "required", "parallel_tool_calls": False}
        completion = client.chat.completions.parse(**asked, tools=self.TOOLS)
        (call,) = completion.choices[0].message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, GetWeather)

    def test_the_helpers_events_tell_of_the_arguments_as_they_come(self, client: openai.OpenAI) -> None:
        asked = {**GREEDY, "max_tokens": 80, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        with client.chat.completions.stream(**asked, tools=self.TOOLS) as stream:
            events = list(stream)
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert "".join(event.arguments_delta for event in deltas) == done.arguments
        assert len(deltas) > 3
        assert isinstance(done.parsed_arguments, GetWeather)
        assert stream.get_final_completion().choices[0].finish_reason == "tool_calls"

    def test_a_conversation_with_calls_goes_round(self, client: openai.OpenAI) -> None:
        asked = {**GREEDY, "max_tokens": 80, "tools": self.TOOLS}
        first = client.chat.completions.create(**asked, tool_choice="required").choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "Sunny"} for call in first.tool_calls or ()]
        assert results
        answer = client.chat.completions.create(**{**asked, "messages": [*SEA, first, *results]}, tool_choice="none")
        assert answer.choices[0].message.content


class TestStreams:
    def test_the_helper_tells_of_content_and_ends_with_the_whole(self, client: openai.OpenAI, hi: ChatCompletion) -> None:
        with client.chat.completions.stream(**HI, stream_options={"include_usage": True}) as stream:
            events = list(stream)
        final = stream.get_final_completion()
        assert [event.content for event in events if event.type == "content.done"] == [_text(hi)] == [_text(final)]
        assert "".join(event.delta for event in events if event.type == "content.delta") == _text(hi)
        assert final.choices[0].finish_reason == "stop"
        assert final.usage is not None
        assert final.usage.completion_tokens == hi.usage.completion_tokens  # type: ignore[union-attr]

    def test_the_helper_says_what_the_limit_cut(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(**GREEDY) as stream, pytest.raises(openai.LengthFinishReasonError):
            stream.get_final_completion()

    def test_log_probabilities_are_events_too(self, client: openai.OpenAI) -> None:
        with client.chat.completions.stream(**GREEDY, logprobs=True, top_logprobs=1) as stream:
            (done,) = [event for event in stream if event.type == "logprobs.content.done"]
        assert len(done.content) == 12

    def test_a_stream_that_is_left_is_closed_and_the_connection_serves_again(self, client: openai.OpenAI, server: RunningServer) -> None:
        server.wait_until_idle(10)
        with client.chat.completions.create(**ENDLESS, stream=True) as stream:
            next(iter(stream))
        assert client.models.list().data
        server.wait_until_idle(3)

    async def test_the_async_client_streams_many_at_once(self, later: openai.AsyncOpenAI, hi: ChatCompletion) -> None:
        async def read() -> str:
            chunks = await later.chat.completions.create(**HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        async def read_with_helper() -> str:
            async with later.chat.completions.stream(**HI) as stream:
                return _text(await stream.get_final_completion())

        assert set(await asyncio.gather(*(read() for _ in range(4)), *(read_with_helper() for _ in range(4)))) == {_text(hi)}

    async def test_a_cancelled_task_stops_the_work(self, later: openai.AsyncOpenAI, server: RunningServer) -> None:
        task = asyncio.create_task(later.chat.completions.create(**ENDLESS))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.wait_until_idle, 3)

    def test_an_error_in_mid_stream_is_raised(self, client: openai.OpenAI) -> None:
        asked = {**ENDLESS, "extra_body": {"ignore_eos": True, "timeout": 0.2}}
        with pytest.raises(openai.APIError) as caught:
            list(client.chat.completions.create(**asked, stream=True))
        assert caught.value.code == "timeout"


class TestRawResponses:
    def test_headers_are_at_hand_and_the_body_parses_to_the_same(self, client: openai.OpenAI, whole: ChatCompletion) -> None:
        raw = client.chat.completions.with_raw_response.create(**GREEDY)
        assert raw.status_code == 200
        assert raw.headers["content-type"] == "application/json"
        assert raw.headers["x-request-id"] == raw.request_id
        assert _text(raw.parse()) == _text(whole)

    def test_a_body_is_read_as_it_comes(self, client: openai.OpenAI, whole: ChatCompletion) -> None:
        with client.chat.completions.with_streaming_response.create(**GREEDY) as response:
            assert response.headers["content-type"] == "application/json"
            assert json.loads(b"".join(response.iter_bytes()))["choices"][0]["message"]["content"] == _text(whole)
        with client.chat.completions.with_streaming_response.create(**GREEDY, stream=True) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"

    async def test_the_async_client_has_them_too(self, later: openai.AsyncOpenAI, whole: ChatCompletion) -> None:
        raw = await later.chat.completions.with_raw_response.create(**GREEDY)
        assert _text(raw.parse()) == _text(whole)

    def test_what_openai_has_no_name_for_is_there_all_the_same(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(**GREEDY, extra_body={"return_token_ids": True}, extra_headers={"x-request-id": "mine"})
        assert len(answer.choices[0].model_extra["token_ids"]) == 12  # type: ignore[index]
        assert answer._request_id == "mine"
        scores: Any = client.post("/score", body={"text_1": "sea", "text_2": "shore"}, cast_to=object)
        assert scores["data"][0]["object"] == "score"


class TestPages:
    def test_models_are_a_page(self, client: openai.OpenAI) -> None:
        page = client.models.list()
        assert [model.id for model in page] == [MODEL]
        assert not page.has_next_page()

    async def test_the_async_client_turns_pages(self, later: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in later.models.list()] == [MODEL]
        first = await later.responses.create(model=MODEL, input="Hello", max_output_tokens=1)
        second = await later.responses.create(model=MODEL, input="Go on", max_output_tokens=1, previous_response_id=first.id)
        assert len([item async for item in later.responses.input_items.list(second.id, limit=1)]) == 3

    async def test_the_async_client_embeds(self, later: openai.AsyncOpenAI) -> None:
        (one,) = (await later.embeddings.create(model=MODEL, input="x")).data
        assert len(one.embedding) == 576


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "kind", "code"),
        [
            ({"temperature": 3000}, openai.BadRequestError, None),
            ({"store": True}, openai.BadRequestError, "unsupported_parameter"),
            ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
            ({"max_tokens": 5000}, openai.BadRequestError, "context_length_exceeded"),
        ],
        ids=["range", "unsupported", "model", "length"],
    )
    def test_each_is_of_its_own_class_with_code_and_request_id(
        self, client: openai.OpenAI, body: dict[str, Any], kind: type[openai.APIStatusError], code: str | None
    ) -> None:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{**GREEDY, **body})
        assert caught.value.code == code
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id

    def test_a_missing_key_and_a_spent_one_have_classes_of_their_own(self, guarded: Guarded) -> None:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0).models.list()
        client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=guarded.keys["few-tokens"], max_retries=0)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model=MODEL, prompt=["word " * 300] * 3, max_tokens=1)
        assert caught.value.code == "rate_limit_exceeded"

    def test_the_clients_own_timeout_is_its_own_error(self, client: openai.OpenAI, server: RunningServer) -> None:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).chat.completions.create(**ENDLESS)
        server.wait_until_idle(3)

    def test_what_the_server_says_not_to_repeat_is_not_repeated(self, client: openai.OpenAI, server: RunningServer) -> None:
        def num_late() -> int:
            return server.log.count("POST /v1/chat/completions 408")

        before = num_late()
        with pytest.raises(openai.APIStatusError) as caught:
            client.with_options(max_retries=3).chat.completions.create(**{**ENDLESS, "extra_body": {"ignore_eos": True, "timeout": 0.1}})
        assert caught.value.status_code == 408
        assert num_late() == before + 1

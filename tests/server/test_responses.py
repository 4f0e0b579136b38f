"""/v1/responses as the official client knows it, against a live server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live_server import RunningServer, running_server
from openai.types.responses import Response

MODEL = "SmolLM2-135M-Instruct"
GREEDY: dict[str, Any] = {"model": MODEL, "input": "Tell me about the sea.", "temperature": 0, "max_output_tokens": 12}
LONG: dict[str, Any] = {"model": MODEL, "input": "Count.", "extra_body": {"min_p": 0.1, "stop": ["never said"]}}


@pytest.fixture(scope="module")
def whole(client: openai.OpenAI) -> Response:
    """The greedy response that many tests compare with."""
    return client.responses.create(**GREEDY)


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def _output(response: Response) -> list[dict[str, Any]]:
    """The output, without the ids, which differ."""
    return [{**item.model_dump(), "id": ""} for item in response.output]


class TestWhole:
    def test_a_response_says_what_chat_says(self, http: httpx.Client, whole: Response) -> None:
        messages = [{"role": "user", "content": GREEDY["input"]}]
        chat = http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 12}).json()
        assert whole.output_text == chat["choices"][0]["message"]["content"]
        assert whole.usage is not None
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (chat["usage"]["prompt_tokens"], 12)
        assert whole.usage.total_tokens == chat["usage"]["total_tokens"]

    def test_what_the_limit_cut_is_incomplete_and_what_ends_is_completed(self, client: openai.OpenAI, whole: Response) -> None:
        assert (whole.status, whole.output[0].status) == ("incomplete", "incomplete")
        assert whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        ended = client.responses.create(model=MODEL, input="Hi", temperature=0, max_output_tokens=64)
        assert (ended.status, ended.incomplete_details) == ("completed", None)
        assert ended.completed_at is not None

    def test_what_was_asked_for_is_repeated_in_the_response(self, client: openai.OpenAI) -> None:
        response = client.responses.create(**GREEDY, instructions="Be brief.", metadata={"a": "b"}, top_p=0.5, user="somebody")
        assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "somebody")
        assert (response.temperature, response.top_p, response.max_output_tokens) == (0, 0.5, 12)
        assert (response.object, response.tool_choice, response.tools, response.error) == ("response", "auto", [], None)

    def test_instructions_are_a_system_message_and_items_are_messages(self, client: openai.OpenAI, http: httpx.Client) -> None:
        items: list[Any] = [
            {"role": "developer", "content": "Speak English."},
            {"role": "user", "content": [{"type": "input_text", "text": "What is the sea?"}]},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Water.", "annotations": []}],
                "type": "message",
                "id": "msg_1",
            },
            {"type": "message", "role": "user", "content": "And the shore?"},
        ]
        response = client.responses.create(model=MODEL, instructions="Be brief.", input=items, temperature=0, max_output_tokens=8)
        messages = [
            {"role": "system", "content": "Be brief.\nSpeak English."},
            {"role": "user", "content": "What is the sea?"},
            {"role": "assistant", "content": "Water."},
            {"role": "user", "content": "And the shore?"},
        ]
        chat = http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 8}).json()
        assert response.output_text == chat["choices"][0]["message"]["content"]
        assert response.usage is not None
        assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]

    def test_log_probabilities_come_when_they_are_included(self, client: openai.OpenAI, whole: Response) -> None:
        response = client.responses.create(**GREEDY, include=["message.output_text.logprobs"], top_logprobs=2)
        part: Any = response.output[0].content[0]  # type: ignore[union-attr, index]
        assert len(part.logprobs) == 12
        assert "".join(entry.token for entry in part.logprobs) == response.output_text == whole.output_text
        assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)

    def test_too_long_a_conversation_is_refused_or_truncated(self, client: openai.OpenAI) -> None:
        items: list[Any] = [{"role": "user", "content": f"Question {index}. " + "word " * 80} for index in range(16)]
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=MODEL, input=items, max_output_tokens=4)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        response = client.responses.create(model=MODEL, input=items, max_output_tokens=4, truncation="auto", instructions="Be brief.")
        assert response.usage is not None
        assert 800 < response.usage.input_tokens <= 1020

    def test_its_input_can_be_counted_beforehand(self, client: openai.OpenAI, whole: Response) -> None:
        counted = client.responses.input_tokens.count(model=MODEL, input=GREEDY["input"])
        assert whole.usage is not None
        assert counted.input_tokens == whole.usage.input_tokens
        chained = client.responses.input_tokens.count(model=MODEL, input="Go on.", previous_response_id=whole.id)
        assert chained.input_tokens > whole.usage.total_tokens

    async def test_the_async_client_gets_the_same(self, server: RunningServer, whole: Response) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert _output(await client.responses.create(**GREEDY)) == _output(whole)


class TestStream:
    def test_events_come_in_their_order_and_add_up_to_the_whole(self, client: openai.OpenAI, whole: Response) -> None:
        events = list(client.responses.create(**GREEDY, stream=True))
        kinds = [event.type.removeprefix("response.") for event in events]
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert kinds == [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *["output_text.delta"] * len(deltas),
            *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert len(deltas) > 4
        last: Any = events[-1]
        assert "".join(event.delta for event in deltas) == last.response.output_text == whole.output_text
        assert _output(last.response) == _output(whole)
        assert last.response.usage.output_tokens == 12

    def test_an_event_shows_the_response_as_it_was_then(self, client: openai.OpenAI) -> None:
        events: list[Any] = list(client.responses.create(**GREEDY, stream=True))
        item = next(event.item for event in events if event.type == "response.output_item.added")
        part = next(event.part for event in events if event.type == "response.content_part.added")
        assert (item.content, item.status, part.text) == ([], "in_progress", "")
        assert all(event.response.output == [] for event in events[:2])
        tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
        asked = {**GREEDY, "max_output_tokens": 60, "tools": [tool], "tool_choice": "required"}
        events = list(client.responses.create(**asked, stream=True))
        item = next(event.item for event in events if event.type == "response.output_item.added")
        assert (item.arguments, item.status) == ("", "in_progress")

    def test_every_event_names_its_kind_and_the_stream_just_ends(self, http: httpx.Client) -> None:
        frames = http.post("/v1/responses", json={**GREEDY, "stream": True}).text.strip().split("\n\n")
        for frame in frames:
            name, _, data = frame.partition("\n")
            assert data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"')
        assert frames[-1].startswith("event: response.incomplete\n")

    def test_the_streaming_helper_sees_the_response_complete(self, client: openai.OpenAI) -> None:
        with client.responses.stream(model=MODEL, input="Hi", temperature=0, max_output_tokens=64) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert snapshots[-1] == final.output_text
        assert final.status == "completed"

    def test_log_probabilities_of_the_deltas_are_those_of_the_whole(self, client: openai.OpenAI) -> None:
        asked: dict[str, Any] = {**GREEDY, "input": "Hi", "max_output_tokens": 64, "include": ["message.output_text.logprobs"]}
        events: list[Any] = list(client.responses.create(**asked, stream=True))
        tokens = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
        (done,) = [event for event in events if event.type == "response.output_text.done"]
        assert tokens == [entry.token for entry in done.logprobs] != []

    def test_what_ends_the_generation_is_a_failed_response(self, client: openai.OpenAI) -> None:
        asked = {**LONG, "extra_body": {**LONG["extra_body"], "timeout": 0.05}}
        last: Any = list(client.responses.create(**asked, stream=True))[-1]
        assert last.type == "response.failed"
        assert last.response.error.code == "server_error"
        assert client.responses.retrieve(last.response.id).status == "failed"

    def test_a_client_that_leaves_stops_the_work(self, client: openai.OpenAI, server: RunningServer) -> None:
        server.wait_until_idle(10)
        stream = client.responses.create(**LONG, stream=True)
        next(iter(stream))
        stream.close()
        server.wait_until_idle(2)


class TestStored:
    def test_a_response_continues_the_one_before(self, client: openai.OpenAI, http: httpx.Client, whole: Response) -> None:
        second = client.responses.create(
            model=MODEL, input="Go on.", previous_response_id=whole.id, temperature=0, max_output_tokens=8, store=False
        )
        messages = [
            {"role": "user", "content": GREEDY["input"]},
            {"role": "assistant", "content": whole.output_text},
            {"role": "user", "content": "Go on."},
        ]
        chat = http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 8}).json()
        assert second.output_text == chat["choices"][0]["message"]["content"]
        assert second.previous_response_id == whole.id
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(second.id)

    def test_it_is_retrieved_as_it_was_answered_until_it_is_deleted(self, client: openai.OpenAI) -> None:
        response = client.responses.create(**GREEDY, metadata={"a": "b"})
        assert client.responses.retrieve(response.id) == response
        client.responses.delete(response.id)
        for look in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                look(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**GREEDY, previous_response_id=response.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")

    def test_its_items_are_listed_in_pages_either_way(self, client: openai.OpenAI, whole: Response) -> None:
        second = client.responses.create(**{**GREEDY, "input": "Go on."}, previous_response_id=whole.id)
        page = client.responses.input_items.list(second.id, limit=2)
        assert [item.role for item in page.data] == ["user", "assistant"]  # type: ignore[union-attr]
        assert page.has_more
        items: list[Any] = list(client.responses.input_items.list(second.id, limit=2, order="asc"))
        assert [item.content[0].text for item in items] == [GREEDY["input"], whole.output_text, "Go on."]
        assert len({item.id for item in items}) == 3

    def test_an_item_can_be_referred_to(self, client: openai.OpenAI, whole: Response) -> None:
        output = whole.output[0].id
        assert output is not None
        items: list[Any] = [{"role": "user", "content": GREEDY["input"]}, {"id": output}, {"role": "user", "content": "Go on."}]
        referring = client.responses.create(**{**GREEDY, "input": items})
        chained = client.responses.create(**{**GREEDY, "input": "Go on."}, previous_response_id=whole.id)
        assert referring.output_text == chained.output_text
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{**GREEDY, "input": [{"type": "item_reference", "id": "msg_nothing"}]})
        assert (caught.value.code, caught.value.param) == ("item_not_found", "input.0")

    def test_what_one_key_made_another_does_not_find(self, client: openai.OpenAI, whole: Response) -> None:
        other = client.with_options(api_key="another")
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(whole.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.delete(whole.id)
        for body in ({"previous_response_id": whole.id}, {"input": [{"id": whole.output[0].id}]}):
            with pytest.raises(openai.BadRequestError):
                other.responses.create(**{**GREEDY, **body})
        assert client.responses.retrieve(whole.id).id == whole.id


class TestBackground:
    def test_it_is_queued_then_made_then_there(self, client: openai.OpenAI, whole: Response) -> None:
        response = client.responses.create(**GREEDY, background=True)
        assert (response.status, response.output) == ("queued", [])
        deadline = time.monotonic() + 20
        while response.status in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            response = client.responses.retrieve(response.id)
        assert _output(response) == _output(whole)
        assert client.responses.cancel(response.id).status == "incomplete", "it had ended"

    def test_it_stops_when_it_is_cancelled_and_when_it_is_deleted(self, client: openai.OpenAI, server: RunningServer) -> None:
        server.wait_until_idle(10)
        cancelled, deleted = (client.responses.create(**LONG, background=True).id for _ in range(2))
        assert client.responses.cancel(cancelled).status == "cancelled"
        assert client.responses.retrieve(cancelled).status == "cancelled"
        assert client.responses.cancel(cancelled).status == "cancelled"
        client.responses.delete(deleted)
        server.wait_until_idle(2)
        assert server.metric("octavo_http_requests_pending") == 0
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(deleted)

    def test_a_client_that_leaves_does_not_stop_it_and_may_read_on(self, client: openai.OpenAI, whole: Response) -> None:
        stream = client.responses.create(**GREEDY, background=True, stream=True)
        first: Any = next(iter(stream))
        stream.close()
        response_id = first.response.id
        rest: list[Any] = list(client.responses.retrieve(response_id, stream=True, starting_after=0))
        assert [event.type for event in rest][:2] == ["response.queued", "response.in_progress"]
        assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
        assert _output(rest[-1].response) == _output(whole)
        assert list(client.responses.retrieve(response_id, stream=True, starting_after=len(rest) - 1)) == rest[-1:]

    def test_what_was_not_made_in_the_background_can_be_neither_cancelled_nor_streamed_again(
        self, client: openai.OpenAI, whole: Response
    ) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.cancel(whole.id)
        assert caught.value.code == "not_in_background"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.retrieve(whole.id, stream=True)
        assert caught.value.code == "stream_not_available"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": "x", "colour": "blue"}]}, "input.0.colour"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}]}, "input.0.encrypted_content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"include": ["everything"]}, "include.0"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "max_output_tokens": 5000}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_\u0000"}, "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"n": 2}, "n"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_a_400_that_names_it(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    error = _error(http.post("/v1/responses", json={"input": "Hello", **body}), 400)
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=nothing", "after=%00%ff"])
def test_a_bad_parameter_in_the_address_is_a_400_that_names_it(http: httpx.Client, whole: Response, query: str) -> None:
    answer = http.get(f"/v1/responses/{whole.id}/input_items?{query}", headers={"authorization": "Bearer none"})
    assert _error(answer, 400)["param"] == query.partition("=")[0]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-5", input="Hello")


def test_with_a_file_responses_outlive_the_server(tmp_path: Path, whole: Response) -> None:
    path = tmp_path / "responses.sqlite"
    flags = ("--response-store", str(path), "--max-stored-responses", "2")
    with running_server(tmp_path, *flags) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        server.wait_until_ready()
        first = client.responses.create(**GREEDY)
        chained = client.responses.create(**{**GREEDY, "input": "Go on."}, previous_response_id=first.id)
        lost = client.responses.create(**LONG, background=True)
        server.process.kill()
        server.process.wait()
    assert path.stat().st_mode & 0o777 == 0o600
    with running_server(tmp_path, *flags) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        server.wait_until_ready()
        assert client.responses.retrieve(chained.id) == chained
        assert client.responses.retrieve(lost.id).status == "failed"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)  # made room for newer ones
        again = client.responses.create(**{**GREEDY, "input": "Why?"}, previous_response_id=chained.id)
        assert [item.content[0].text for item in client.responses.input_items.list(again.id, order="asc")][:2] == [  # type: ignore
            GREEDY["input"],
            whole.output_text,
        ]

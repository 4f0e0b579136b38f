"""/v1/messages as Anthropic's official client knows it, against a live server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from live_server import Guarded, RunningServer

MODEL = "SmolLM2-135M-Instruct"
SEA: list[Any] = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": SEA, "extra_body": {"temperature": 0}, "max_tokens": 12}
HI: dict[str, Any] = {**GREEDY, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    """The official client, as its users make it."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def whole(claude: anthropic.Anthropic) -> anthropic.types.Message:
    """The greedy message that many tests compare with."""
    return claude.messages.create(**GREEDY)


def _chat(http: httpx.Client, messages: list[Any], **body: Any) -> dict[str, Any]:
    asked = {"messages": messages, "temperature": 0, "max_tokens": 12, **body}
    answer: dict[str, Any] = http.post("/v1/chat/completions", json=asked).raise_for_status().json()
    return {**answer["choices"][0], "usage": answer["usage"]}


def _text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _tokens(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_a_message_says_what_chat_says(whole: anthropic.types.Message, http: httpx.Client) -> None:
    chat = _chat(http, SEA)
    assert _text(whole) == chat["message"]["content"]
    assert (_tokens(whole), whole.usage.output_tokens) == (chat["usage"]["prompt_tokens"], 12)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", MODEL)


def test_the_stop_reason_says_what_ended_it(claude: anthropic.Anthropic, whole: anthropic.types.Message) -> None:
    assert (whole.stop_reason, whole.stop_sequence) == ("max_tokens", None)
    ended = claude.messages.create(**HI)
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)
    stop = _text(whole)[6:13]
    stopped = claude.messages.create(**GREEDY, stop_sequences=["never", stop])
    assert (stopped.stop_reason, stopped.stop_sequence, _text(stopped)) == ("stop_sequence", stop, _text(whole)[:6])


def test_a_limit_beyond_the_context_ends_with_the_context(claude: anthropic.Anthropic) -> None:
    words = [{"role": "user", "content": "word " * 980}]
    endless = {"structured_outputs": {"regex": "[a-z]{900}"}}
    message = claude.messages.create(**{**GREEDY, "messages": words, "max_tokens": 32000, "extra_body": endless})
    assert message.stop_reason == "model_context_window_exceeded"
    assert _tokens(message) + message.usage.output_tokens == 1024


def test_blocks_and_turns_become_the_messages_of_chat(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "What is the sea?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Tell me."},
        {"role": "assistant", "content": [{"type": "text", "text": "Water."}]},
        {"role": "user", "content": "And the shore?"},
    ]
    system: list[Any] = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    message = claude.messages.create(**{**GREEDY, "messages": messages, "system": system})
    chat = _chat(
        http,
        [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "What is the sea?\nTell me."},
            {"role": "assistant", "content": "Water."},
            {"role": "user", "content": "And the shore?"},
        ],
    )
    assert _text(message) == chat["message"]["content"]
    assert _tokens(message) == chat["usage"]["prompt_tokens"]


def test_an_assistants_message_at_the_end_is_continued(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    messages: list[Any] = [*SEA, {"role": "assistant", "content": "The sea, my friend, is"}]
    message = claude.messages.create(**{**GREEDY, "messages": messages})
    assert _text(message) == _chat(http, messages, continue_final_message=True)["message"]["content"]


def test_events_come_in_their_order_and_add_up_to_the_whole(claude: anthropic.Anthropic, whole: anthropic.types.Message) -> None:
    events: list[Any] = list(claude.messages.create(**GREEDY, stream=True))
    deltas = [event for event in events if event.type == "content_block_delta"]
    assert [event.type for event in events] == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * len(deltas),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert len(deltas) > 4
    assert "".join(event.delta.text for event in deltas) == _text(whole)
    assert events[0].message.content == []
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("max_tokens", 12)


def test_the_streaming_helper_ends_with_the_whole(claude: anthropic.Anthropic, whole: anthropic.types.Message) -> None:
    with claude.messages.stream(**GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == _text(final) == _text(whole)
    assert (final.stop_reason, _tokens(final)) == (whole.stop_reason, _tokens(whole))


async def test_the_async_client_gets_the_same(server: RunningServer, whole: anthropic.types.Message) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        assert (await client.messages.create(**GREEDY)).content == whole.content
        async with client.messages.stream(**GREEDY) as stream:
            assert (await stream.get_final_message()).content[0].text == _text(whole)  # type: ignore[union-attr]


def test_the_frames_are_named_and_a_ping_is_among_them(http: httpx.Client) -> None:
    body = {"messages": SEA, "max_tokens": 2, "stream": True}
    frames = http.post("/v1/messages", json=body).text.strip().split("\n\n")
    for frame in frames:
        name, _, data = frame.partition("\n")
        assert data.startswith('data: {"type":"' + name.removeprefix("event: ") + '"')
    assert frames[1] == 'event: ping\ndata: {"type":"ping"}'


def test_tokens_are_counted_as_they_would_be_read(claude: anthropic.Anthropic, whole: anthropic.types.Message) -> None:
    count = claude.messages.count_tokens(model=MODEL, messages=SEA)
    assert count.input_tokens == _tokens(whole)
    assert claude.messages.count_tokens(model=MODEL, messages=SEA, system="Be brief.").input_tokens != count.input_tokens


def test_a_client_that_leaves_stops_the_work(claude: anthropic.Anthropic, server: RunningServer) -> None:
    server.wait_until_idle(10)
    stream = claude.messages.create(**{**GREEDY, "max_tokens": 900, "extra_body": {"min_p": 0.1}}, stream=True)
    next(iter(stream))
    stream.close()
    server.wait_until_idle(2)


class TestErrors:
    def test_each_is_of_the_clients_own_class(self, claude: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.BadRequestError) as bad:
            claude.messages.create(**{**GREEDY, "messages": [{"role": "user", "content": "word " * 1100}]})
        assert bad.value.type == "invalid_request_error"
        assert bad.value.request_id
        with pytest.raises(anthropic.NotFoundError) as missing:
            claude.messages.create(**{**GREEDY, "model": "claude-opus-5"})
        assert (missing.value.type, missing.value.error_code) == ("not_found_error", "model_not_found")

    def test_a_wrong_key_is_an_authentication_error(self, guarded: Guarded) -> None:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            anthropic.Anthropic(base_url=guarded.url, api_key="wrong", max_retries=0).messages.create(**GREEDY)
        assert caught.value.type == "authentication_error"
        with anthropic.Anthropic(base_url=guarded.url, api_key=guarded.keys["front"], max_retries=0) as client:
            assert client.messages.count_tokens(model=MODEL, messages=SEA).input_tokens > 0

    def test_a_timeout_has_anthropics_status_and_is_an_event_in_mid_stream(self, claude: anthropic.Anthropic) -> None:
        asked: dict[str, Any] = {**GREEDY, "max_tokens": 900, "extra_body": {"min_p": 0.1, "timeout": 0.05}}
        with pytest.raises(anthropic.InternalServerError) as caught:
            claude.messages.create(**asked)
        assert (caught.value.status_code, caught.value.type) == (504, "timeout_error")
        with pytest.raises(anthropic.APIStatusError) as caught_later:
            list(claude.messages.create(**asked, stream=True))
        assert caught_later.value.type == "timeout_error"

    def test_other_routes_keep_openais_shape(self, server: RunningServer, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-5", messages=SEA)
        assert set(httpx.get(f"{server.url}/v1/nothing").json()) == {"error"}
        assert httpx.get(f"{server.url}/v1/messages/nothing").json()["type"] == "error"

    @pytest.mark.parametrize(
        ("body", "named"),
        [
            ({"max_tokens": None}, "max_tokens"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "user", "content": []}]}, "messages"),
            ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
            ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "messages.0.content.0"),
            ({"messages": [*SEA, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "messages.1.content.0"),
            ({"stop_sequences": [""]}, "stop"),
            ({"temperature": -1}, "temperature"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
            ({"thinking": {"type": "enabled", "budget_tokens": 12}}, "thinking.budget_tokens"),
            ({"thinking": {"type": "enabled", "budget_tokens": 2}}, "not supported"),
            ({"container": "c"}, "container"),
            ({"n": 2}, "'n'"),
        ],
        ids=str,
    )
    def test_a_bad_parameter_is_named(self, http: httpx.Client, body: dict[str, Any], named: str) -> None:
        answer = http.post("/v1/messages", json={"messages": SEA, "max_tokens": 8, **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()
        assert (error["type"], set(error["error"]) - {"details"}) == ("error", {"type", "message"})
        assert named in error["error"]["message"]

"""The event stream on bare ASGI: framing, errors in mid-stream, silence, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from engine.errors import EngineDeadError
from server.dialect import OpenAI
from server.observability.record import new_record
from server.render.chunks import ChunkWriter
from server.sse import EventStream, event

HEAD = {"id": "x-1", "object": "chunk", "created": 7, "model": "m"}


class _Client:
    """The client's end of an ASGI connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.messages: list[Any] = []
        self.scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
        self.record = new_record(self.scope)

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    async def read(self, frames: AsyncIterator[bytes], keepalive: float = 0.0) -> bytes:
        await EventStream(frames, keepalive)(self.scope, self.receive, self.send)
        return self.body

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages if message["type"] == "http.response.body")


async def test_frames_are_sent_as_they_come_and_the_stream_is_closed() -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield event(b"1")
        yield event(b"2")

    client = _Client()
    assert await client.read(frames()) == b"data: 1\n\ndata: 2\n\n"
    assert [message.get("more_body") for message in client.messages] == [None, True, True, False]
    headers = dict(client.messages[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers


@pytest.mark.parametrize(("error", "code"), [(EngineDeadError("gone"), "engine_dead"), (ZeroDivisionError("secret"), "internal_error")])
async def test_an_error_in_mid_stream_is_an_event_of_its_own(error: Exception, code: str) -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield event(b"1")
        raise error

    client = _Client()
    last = (await client.read(frames())).split(b"\n\n")[-2]
    told = json.loads(last.removeprefix(b"data: "))["error"]
    assert told["code"] == code
    assert "secret" not in told["message"]
    assert code != "internal_error" or client.record.request_id in told["message"]
    assert client.messages[-1]["more_body"] is False


async def test_silence_is_filled_with_comments() -> None:
    async def frames() -> AsyncIterator[bytes]:
        yield event(b"1")
        await asyncio.sleep(0.25)
        yield event(b"2")

    body = await _Client().read(frames(), keepalive=0.1)
    assert body.startswith(b"data: 1\n\n" + OpenAI.keepalive)
    assert body.endswith(OpenAI.keepalive + b"data: 2\n\n")


async def test_a_stream_that_flows_has_no_comments() -> None:
    async def frames() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield event(b"1")
            await asyncio.sleep(0.02)

    assert OpenAI.keepalive not in await _Client().read(frames(), keepalive=0.1)


async def test_a_client_that_leaves_ends_the_iterator() -> None:
    closed = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        try:
            yield event(b"1")
            await asyncio.sleep(60)
        finally:
            closed.set()

    client = _Client()
    reading = asyncio.ensure_future(client.read(frames()))
    await asyncio.sleep(0.05)
    client.gone.set()
    with pytest.raises(ClientDisconnect):
        await reading
    assert closed.is_set()


@given(st.text(), st.integers(0, 127), st.sampled_from(["content", "text"]), st.booleans())
def test_a_text_frame_is_one_event_of_valid_json(text: str, index: int, field: str, include_usage: bool) -> None:
    frame = ChunkWriter(HEAD, field, include_usage, None).text(index, text)
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    chunk = json.loads(frame[6:])
    body = {"delta": {"content": text}} if field == "content" else {"text": text}
    assert chunk["choices"] == [{"index": index, **body, "logprobs": None, "finish_reason": None}]
    assert {name: chunk[name] for name in HEAD} == HEAD
    assert ("usage" in chunk) == include_usage


def test_fast_and_slow_frames_are_the_same() -> None:
    for field in ("content", "text"):
        writer = ChunkWriter(HEAD, field, True, None)
        assert json.loads(writer.text(3, "hé")[6:]) == json.loads(writer.rich_text(3, "hé", None, {})[6:])


def test_a_running_usage_is_in_every_chunk() -> None:
    writer = ChunkWriter(HEAD, "content", True, lambda: {"total_tokens": 3})
    frames = (writer.role(0, {"prompt_token_ids": [1]}), writer.text(0, "a"), writer.final(0, "stop", None))
    assert [json.loads(frame[6:])["usage"] for frame in frames] == [{"total_tokens": 3}] * 3
    assert json.loads(frames[0][6:])["prompt_token_ids"] == [1]


async def test_a_stream_does_not_begin_with_a_comment() -> None:
    async def frames() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.05)
        yield event(b"1")

    assert await _Client().read(frames(), keepalive=5) == b"data: 1\n\n"

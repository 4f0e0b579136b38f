"""The engine is killed with -9 in the middle of everything: every stream ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from live_server import RunningServer, running_server

from loadtest.client import Answer, ask, connection, receive, send

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Request = tuple[str, dict[str, Any]]
SEEDED = {"temperature": 0.9, "seed": 11}
# Streams in which something may be held back for long say little of progress: a search, a choice of the best, a stop string half there.
HELD_BACK = {"beams", "best_of", "half a stop string", "an embedding"}
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "minLength": 100}, "guests": {"type": "integer"}, "notes": {"type": "string"}},
    "required": ["place", "guests", "notes"],
    "additionalProperties": False,
}
BOOKING = {"type": "json_schema", "json_schema": {"name": "booking", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "book_a_table", "parameters": SCHEMA}}


async def requests_of_every_kind(url: str, num_tokens: int) -> dict[str, Request]:
    """Requests whose answers are always the same, by what a kill may fall into the middle of."""
    story: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Tell me of the sea."}],
        "max_tokens": num_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        emoji = (await client.post("/tokenize", json={"prompt": "😀🎉🚀", "add_special_tokens": False})).json()["tokens"]
        text = (await client.post(COMPLETIONS, json={**story, "stream": False})).json()["choices"][0]["text"]
    return {
        "greedy": (COMPLETIONS, story),
        "seeded": (CHAT, {**chat, **SEEDED, "frequency_penalty": 0.3}),
        "logprobs": (CHAT, {**chat, **SEEDED, "logprobs": True, "top_logprobs": 3}),
        "n=4": (CHAT, {**chat, **SEEDED, "n": 4}),
        "best_of": (COMPLETIONS, {**story, **SEEDED, "stream": False, "n": 2, "best_of": 4, "logprobs": 1}),
        "beams": (COMPLETIONS, {**story, "stream": False, "use_beam_search": True, "n": 3}),
        "half an emoji": (COMPLETIONS, {**story, **SEEDED, "allowed_token_ids": sorted(set(emoji)), "logprobs": 0}),
        "half a stop string": (COMPLETIONS, {**story, "stop": [text[len(text) // 4 : -20]]}),
        "a grammar": (CHAT, {**chat, **SEEDED, "response_format": BOOKING, "ignore_eos": False}),
        "half an emoji under a grammar": (
            COMPLETIONS,
            {**story, **SEEDED, "structured_outputs": {"regex": "(😀|🎉|🚀){30,60}"}, "ignore_eos": False},
        ),
        "an embedding": ("/v1/embeddings", {"input": ["The sea, the sea! " * 40, "A table for two."]}),
        "a tool call": (CHAT, {**chat, **SEEDED, "tools": [TOOL], "tool_choice": "required", "ignore_eos": False}),
    }


class Stream:
    """One answer as it is read."""

    def __init__(self, url: str, request: Request) -> None:
        self.url = url
        self.path, self.body = request
        self.num_pieces = 0
        self.ended = False

    async def read(self) -> Answer:
        async with connection(self.url) as (reader, writer):
            await send(writer, self.path, self.body)
            answer, pieces = await receive(reader)
            async for _ in pieces:
                self.num_pieces += 1
        self.ended = True
        return answer


def content(answer: Answer) -> Any:
    """What an answer says, however it was cut into pieces: each choice's strings joined, its lists appended."""
    assert (answer.status, answer.error, answer.is_whole) == (200, None, True), answer.body[-500:]
    if not answer.is_stream and "data" in json.loads(answer.body):
        return json.loads(answer.body)["data"]
    choices: dict[int, Any] = {}
    for part in answer.events() if answer.is_stream else [json.loads(answer.body)]:
        for choice in part["choices"]:
            choices[choice["index"]] = _joined(choices.get(choice["index"]), choice)
    return choices


def _joined(old: Any, new: Any) -> Any:
    if old is None or new is None:
        return new if old is None else old
    if isinstance(new, dict):
        # A call has an id that is drawn anew for each answer.
        return {key: _joined(old.get(key), new.get(key)) for key in (old | new) if key != "id"}
    if isinstance(new, list) and old and new and isinstance(new[0], dict) and "index" in new[0]:
        return [_joined(one, other) for one, other in zip(old, new, strict=True)]
    return new if isinstance(new, int) and not isinstance(new, bool) else old + new


async def kill_when_each_has_gained(server: RunningServer, streams: dict[str, Stream], times: int) -> int:
    """Kills the engine `times` times, each after every stream that tells has got something since the last. Returns how often."""
    for kill in range(times):
        before = {name: stream.num_pieces for name, stream in streams.items()}
        while any(not s.ended and s.num_pieces <= before[name] + 1 for name, s in streams.items() if name.split(": ")[-1] not in HELD_BACK):
            await asyncio.sleep(0.005)
        if all(stream.ended for stream in streams.values()):
            return kill
        (engine,) = psutil.Process(server.process.pid).children()
        engine.kill()
    return times


async def probe(url: str) -> None:
    """/health never refuses."""
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        while True:
            assert (await client.get("/health")).status_code == 200
            await asyncio.sleep(0.05)


async def _check(server: RunningServer, requests: dict[str, Request], kills: int) -> None:
    expected = {name: content(await ask(server.url, *request)) for name, request in requests.items()}
    streams = {name: Stream(server.url, request) for name, request in requests.items()}
    probing = asyncio.create_task(probe(server.url))
    readers = {name: asyncio.create_task(stream.read()) for name, stream in streams.items()}
    assert await kill_when_each_has_gained(server, streams, kills) == kills
    for name, reader in readers.items():
        assert content(await reader) == expected[name], name
    assert not probing.done()
    probing.cancel()
    server.wait_until_idle(20)
    assert server.metric('octavo_kv_blocks{state="referenced"}') == 0


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose engine these tests kill."""
    with running_server(tmp_path_factory.mktemp("mortal")) as server:
        server.wait_until_ready()
        yield server


def test_a_kill_in_the_middle_of_everything_changes_no_answer(mortal: RunningServer) -> None:
    before = mortal.metric("octavo_engine_restarts_total")
    requests = asyncio.run(requests_of_every_kind(mortal.url, 24))
    asyncio.run(_check(mortal, requests, kills=1))
    assert mortal.metric("octavo_engine_restarts_total") == before + 1


def test_requests_that_come_while_a_dead_engine_is_replaced_are_held_until_it_serves(mortal: RunningServer) -> None:
    (engine,) = psutil.Process(mortal.process.pid).children()
    engine.kill()
    mortal._wait(lambda: not mortal.is_ready(), 10)
    body = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{mortal.url}{COMPLETIONS}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 5])
def test_thirty_streams_survive_kills(tmp_path: Path, kills: int) -> None:
    with running_server(tmp_path, "--max-num-seqs", "64") as server:
        server.wait_until_ready()
        kinds = asyncio.run(requests_of_every_kind(server.url, 150))
        requests = {f"{i}: {name}": kinds[name] for i, name in enumerate((list(kinds) * 4)[:30])}
        asyncio.run(_check(server, requests, kills))
        assert server.metric("octavo_engine_restarts_total") == kills

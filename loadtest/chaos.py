"""Everything at once, for a while, and nothing may be lost: `python -m loadtest.chaos [--seconds 60]`.

Starts a server and asks it for texts whose undisturbed form is known, while clients leave, read slowly, come in bursts above the limits,
or send what is malformed, and the engine is killed with -9 every 20 seconds. Ends with a verdict: what became of each request, whether
KV blocks, requests or files are still held when all is quiet, and how the server's memory grew after it was warm.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from loadtest.client import ConnectionCutError, ask, connection, receive, send
from loadtest.malformed import MALFORMED
from loadtest.verdict import Ledger, Verdict
from tests.server.live_server import RunningServer, running_server

PLACES = 64  # sequences that the server takes at once
BURST = 80  # requests that come together
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_ENDLESS = {"prompt": "Count: 1, 2, 3,", "max_tokens": 400, "ignore_eos": True, "stream": True}


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Requests whose answers are always the same, of as many kinds as there are."""
    story: dict[str, Any] = {"prompt": "Once upon a time there was", "max_tokens": 60, "temperature": 0, "stream": True}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me of the sea."}], "max_tokens": 60, "temperature": 0}
    seeded = {"temperature": 0.9, "seed": 7}
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
    person = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}}}
    return [
        (COMPLETIONS, story),
        (COMPLETIONS, {**story, **seeded, "n": 4}),
        (COMPLETIONS, {**story, "stream": False, **seeded, "n": 2, "best_of": 4}),
        (COMPLETIONS, {**story, "stream": False, "use_beam_search": True, "n": 3, "max_tokens": 20}),
        (COMPLETIONS, {**story, **seeded, "logprobs": 3, "frequency_penalty": 0.5}),
        (COMPLETIONS, {**story, "prompt": "word " * 300, "ignore_eos": True}),
        (COMPLETIONS, {**story, "prompt": "Emoji: 😀 😃 😄 😁", "ignore_eos": True}),
        (CHAT, {**chat, "stream": True}),
        (CHAT, {**chat, **seeded, "stream": True, "stop": ["ocean", " the deep"]}),
        (CHAT, {**chat, **seeded, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**chat, **seeded, "stream": True, "response_format": person}),
        (CHAT, {**chat, **seeded, "stream": True, "tools": [tool], "tool_choice": "required"}),
    ]


class Chaos:
    """The clients, and what they have seen."""

    def __init__(self, server: RunningServer, seconds: float, kill_every: float) -> None:
        self.server = server
        self.kill_every = kill_every
        self.ledger = Ledger()
        self.num_kills = 0
        self.slowest_health = 0.0
        self.unhealthy = 0
        self.memory: list[int] = []  # resident bytes of the API process, twice a second
        self._seconds = seconds
        self._end = 0.0  # time.monotonic()
        self._rng = random.Random(0)
        self._known: list[tuple[str, dict[str, Any], list[str]]] = []

    async def learn(self) -> None:
        """The undisturbed answers."""
        for path, body in requests():
            answer = await ask(self.server.url, path, body)
            assert answer.error is None, answer.body
            self._known.append((path, body, answer.texts()))

    async def run(self) -> None:
        self._end = time.monotonic() + self._seconds
        actors = [self._steady] * 6 + [self._slow] * 4 + [self._leaver] * 4 + [self._malformed] * 2
        actors += [self._burst, self._killer, self._prober, self._memory]
        await asyncio.gather(*(self._until_end(actor) for actor in actors))

    async def _until_end(self, actor: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._end:
            await actor()

    async def _attempt(self, work: Awaitable[None]) -> None:
        """One request; whatever breaks is a loss."""
        self.ledger.sent += 1
        try:
            await asyncio.wait_for(work, 120)
        except (ConnectionCutError, OSError, TimeoutError) as error:
            self.ledger.lost.append(f"{type(error).__name__}: {error}")

    async def _steady(self) -> None:
        path, body, expected = self._rng.choice(self._known)

        async def work() -> None:
            self.ledger.enter(await ask(self.server.url, path, body), expected, refusals=lambda status: status == 429)

        await self._attempt(work())
        await asyncio.sleep(0.05)

    async def _slow(self) -> None:
        path, body, expected = self._rng.choice(self._known)

        async def work() -> None:
            async with connection(self.server.url, receive_buffer=4096) as (reader, writer):
                await send(writer, path, body)
                answer, pieces = await receive(reader)
                async for _ in pieces:
                    await asyncio.sleep(0.1)
                self.ledger.enter(answer, expected, refusals=lambda status: status == 429)

        await self._attempt(work())

    async def _leaver(self) -> None:
        pieces_to_read = self._rng.randrange(20)

        async def work() -> None:
            async with connection(self.server.url) as (reader, writer):
                await send(writer, COMPLETIONS, _ENDLESS)
                if pieces_to_read:
                    answer, pieces = await receive(reader)
                    if answer.status != 200:
                        async for _ in pieces:
                            pass
                        self.ledger.enter(answer, refusals=lambda status: status == 429)
                        return
                    for _ in range(pieces_to_read):
                        await anext(pieces)
                self.ledger.left += 1

        await self._attempt(work())

    async def _burst(self) -> None:
        await asyncio.gather(*(self._steady() for _ in range(BURST)))
        await asyncio.sleep(8)

    async def _malformed(self) -> None:
        path, body, headers = self._rng.choice(MALFORMED)

        async def work() -> None:
            answer = await ask(self.server.url, path, body, headers)
            if answer.error is None:
                self.ledger.wrong.append(f"malformed, but status {answer.status} without an error object: {path} {body!r:.80}")
            self.ledger.enter(answer, refusals=lambda status: 400 <= status < 500)

        await self._attempt(work())
        await asyncio.sleep(0.1)

    async def _killer(self) -> None:
        await asyncio.sleep(min(self.kill_every, max(0.0, self._end - time.monotonic())))
        if self.kill_every and time.monotonic() < self._end:
            for child in psutil.Process(self.server.process.pid).children():
                child.kill()
            self.num_kills += 1

    async def _prober(self) -> None:
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=self.server.url, timeout=30) as client:
            try:
                self.unhealthy += (await client.get("/health")).status_code != 200
            except httpx.HTTPError:
                self.unhealthy += 1
        self.slowest_health = max(self.slowest_health, time.monotonic() - began)
        await asyncio.sleep(0.2)

    async def _memory(self) -> None:
        self.memory.append(psutil.Process(self.server.process.pid).memory_info().rss)
        await asyncio.sleep(0.5)


def growth(memory: list[int]) -> float:
    """Of the highest in the last quarter over the highest in the second: by then the server is warm."""
    quarter = len(memory) // 4
    return max(memory[-quarter:]) / max(memory[quarter : 2 * quarter]) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kills of the engine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        flags = ("--max-pending-requests", str(PLACES), "--no-access-log")
        with running_server(Path(directory), *flags) as server:
            server.wait_until_ready()
            process = psutil.Process(server.process.pid)
            chaos = Chaos(server, args.seconds, args.kill_every)
            asyncio.run(chaos.learn())
            files = process.num_fds()
            asyncio.run(chaos.run())
            server.wait_until_idle(30)
            time.sleep(1)
            verdict = Verdict(f"{args.seconds:g} s of chaos")
            verdict.ledger(chaos.ledger)
            verdict.note("engine killed", chaos.num_kills)
            verdict.check("/health failed", chaos.unhealthy, "0", chaos.unhealthy == 0)
            verdict.note("slowest /health", f"{chaos.slowest_health:.2f} s")
            for name in ('octavo_kv_blocks{state="referenced"}', "octavo_http_requests_pending"):
                held = server.metric(name)
                verdict.check(f"still held: {name}", f"{held:g}", "0", held == 0)
            verdict.check("still open: files", process.num_fds() - files, "at most 3 more", process.num_fds() - files <= 3)
            grown = growth(chaos.memory)
            verdict.check("memory growth once warm", f"{100 * grown:.1f}%", "< 2%", grown < 0.02)
            verdict.note("memory", f"{chaos.memory[-1] / 2**20:.0f} MiB")
    verdict.end()


if __name__ == "__main__":
    main()

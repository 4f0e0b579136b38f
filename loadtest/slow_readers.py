"""What slow readers and idle connections cost the others: `python -m loadtest.slow_readers [--repeats 2]`.

A server with 1,000 idle connections, 100 streams whose clients read slowly, and 8 streams that are measured: the 99th percentile of
the time between two pieces, against the same run in which all clients read at full speed. The two kinds of run take turns; the figure is
the ratio of their medians, and must be at most 1.3.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

from loadtest.client import Answer, ask, connection, receive, send
from loadtest.verdict import Verdict
from tests.server.live_server import RunningServer, running_server

IDLE, SLOW, MEASURED = 1000, 100, 8
SLOW_TOKENS, MEASURED_TOKENS = 260, 200
BOUND = 1.3
_STORY: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "stream": True}
# Some 3 KB a token, so that far more is sent than the kernel keeps for a client that does not read.
_RICH: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": SLOW_TOKENS,
    "logprobs": True,
    "top_logprobs": 20,
    "ignore_eos": True,
    "stream": True,
}
_FLAGS = ("--max-num-seqs", str(SLOW + MEASURED), "--kv-cache-memory", "2G", "--no-access-log")


class Run:
    """One run."""

    def __init__(self, server: RunningServer, slow: bool) -> None:
        self._url = server.url
        self._slow = slow
        self._measured_done = asyncio.Event()
        self.events_of_others = 0

    async def p99(self) -> float:
        """Of the gaps between the pieces of the measured streams, in seconds."""
        async with AsyncExitStack() as open_until_the_end:
            for _ in range(IDLE):
                await open_until_the_end.enter_async_context(connection(self._url))
            others = [asyncio.create_task(self._other()) for _ in range(SLOW)]
            await asyncio.sleep(3)  # their prompts are computed by then
            body = {**_STORY, "max_tokens": MEASURED_TOKENS}
            answers = await asyncio.gather(*(ask(self._url, "/v1/completions", body) for _ in range(MEASURED)))
            self._measured_done.set()
            await asyncio.gather(*others)
        gaps = [after - before for answer in answers for before, after in zip(answer.times, answer.times[1:], strict=False)]
        return statistics.quantiles(gaps, n=100)[-1]

    async def _other(self) -> None:
        async with connection(self._url, receive_buffer=4096) as (reader, writer):
            await send(writer, "/v1/chat/completions", _RICH)
            answer, pieces = await receive(reader)
            async for _ in pieces:
                if self._slow and not self._measured_done.is_set():
                    await asyncio.sleep(5.0)
            _check_whole(answer)
            self.events_of_others += len(answer.times)


def _check_whole(answer: Answer) -> None:
    events = answer.events()
    tokens = sum(len(choice["logprobs"]["content"]) for event in events for choice in event["choices"] if choice["logprobs"])
    if not answer.is_whole or tokens != SLOW_TOKENS:
        raise SystemExit(f"a slow reader got {tokens} of {SLOW_TOKENS} tokens: {answer.body[-200:]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    figures: dict[bool, list[float]] = {False: [], True: []}
    events: dict[bool, int] = {}
    with tempfile.TemporaryDirectory() as directory, running_server(Path(directory), *_FLAGS) as server:
        server.wait_until_ready()
        for _ in range(args.repeats):
            for slow in (False, True):
                run = Run(server, slow)
                figures[slow].append(asyncio.run(run.p99()))
                events[slow] = run.events_of_others
                server.wait_until_idle(60)
        memory = psutil.Process(server.process.pid).memory_info().rss
    full, slowly = (statistics.median(figures[slow]) for slow in (False, True))
    verdict = Verdict(f"{MEASURED} streams beside {SLOW} slow readers and {IDLE} idle connections")
    verdict.note("p99 between pieces, all read at full speed", f"{1000 * full:.0f} ms")
    verdict.note("p99 between pieces, beside slow readers", f"{1000 * slowly:.0f} ms")
    verdict.check("ratio", f"{slowly / full:.2f}", f"at most {BOUND}", slowly <= BOUND * full)
    verdict.note("pieces of slow readers", f"{events[True]}, of {events[False]} at full speed: deltas merge where a reader is behind")
    verdict.note("memory of the API process", f"{memory / 2**20:.0f} MiB")
    verdict.end()


if __name__ == "__main__":
    main()

"""How cost grows: `python -m loadtest.growth [--json FILE]` (docs/benchmarks.md has the chart).

Tokens per second, and where the time of a step goes, against the number of sequences and against the length of their contexts, each alone.
Streams with prompts of token ids that no cache knows are opened on a server of ours; when all have their first token, nothing but decoding
is left, and that is watched for a while: the server's own metrics give tokens, steps and the engine's parts of a step, and the operating
system gives the API process's processor time, which is the cost of output: detokenising, framing, sending.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from loadtest.client import connection, receive, send
from loadtest.servers import PORT, cpu_seconds, octavo, running

URL = f"http://127.0.0.1:{PORT}"
MAX_MODEL_LEN = 8192
SHORTEST = 128
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8000)
PARTS = ("scheduler", "model", "sampler", "output")


@dataclass
class Point:
    """Decoding of so many sequences after prompts of so many tokens."""

    sequences: int
    context: int
    first_tokens: float  # seconds until all prompts were computed
    tokens_per_second: float
    step_ms: float
    parts_ms: dict[str, float]  # of a step, by PARTS; output overlaps the next step where there is a core for it


@dataclass
class Counts:
    """What had been counted at a moment."""

    when: float
    steps: float
    tokens: float
    parts: dict[str, float]  # seconds

    def until(self, later: Counts) -> tuple[float, float, dict[str, float]]:
        """Tokens a second, milliseconds a step, and milliseconds of each part of a step."""
        seconds, steps = later.when - self.when, later.steps - self.steps
        parts = {part: 1e3 * (later.parts[part] - self.parts[part]) / steps for part in PARTS}
        return (later.tokens - self.tokens) / seconds, 1e3 * seconds / steps, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--seconds", type=float, default=1.0, help="of decoding that are watched for each point")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with running(octavo(args.model, max(SEQUENCES)), f"{URL}/ready") as (process, _):
        asyncio.run(measure(process, 8, SHORTEST, args.seconds))  # warms up
        points = [asyncio.run(measure(process, *case, args.seconds)) for case in cases()]
    print_table(points)
    if args.json:
        args.json.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")


def cases() -> Iterator[tuple[int, int]]:
    """(sequences, context)"""
    yield from ((sequences, SHORTEST) for sequences in SEQUENCES)
    yield from ((1, context) for context in CONTEXTS[1:])
    yield from ((8, context) for context in CONTEXTS[1:-2])


async def measure(process: psutil.Process, sequences: int, context: int, seconds: float) -> Point:
    started = time.perf_counter()
    rng = random.Random(started)
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(sequences):
            reader, writer = await stack.enter_async_context(connection(URL))
            prompt = [rng.randrange(100, 40_000) for _ in range(context)]
            body = {"prompt": prompt, "max_tokens": MAX_MODEL_LEN - context, "ignore_eos": True, "temperature": 0, "stream": True}
            await send(writer, "/v1/completions", body)
            streams.append(reader)
        first = [asyncio.Event() for _ in streams]
        readers = [asyncio.create_task(read(stream, seen)) for stream, seen in zip(streams, first, strict=True)]
        stack.callback(lambda: [reader.cancel() for reader in readers])
        await asyncio.gather(*(seen.wait() for seen in first))
        for task in readers:
            if task.done():
                task.result()  # raises what was wrong with a stream
        first_tokens = time.perf_counter() - started
        before = await asyncio.to_thread(counts, process)
        await asyncio.sleep(seconds)
        after = await asyncio.to_thread(counts, process)
    await asyncio.to_thread(wait_until_idle)
    return Point(sequences, context, first_tokens, *before.until(after))


def wait_until_idle() -> None:
    while metrics()["octavo_sequences_running", ""]:
        time.sleep(0.02)


async def read(stream: asyncio.StreamReader, seen: asyncio.Event) -> None:
    """Says when the first token is there, or will never be, and takes the rest off the wire."""
    try:
        answer, pieces = await receive(stream)
        assert answer.status == 200, answer.status
        async for piece in pieces:
            if piece.startswith(b"data:"):
                seen.set()
    finally:
        seen.set()


def counts(process: psutil.Process) -> Counts:
    now = metrics()
    part = {name: now["octavo_step_seconds_total", name] for name in ("schedule", "update", "model", "sample")}
    parts = {
        "scheduler": part["schedule"] + part["update"],
        "model": part["model"],
        "sampler": part["sample"],
        "output": cpu_seconds(process.pid),
    }
    return Counts(time.perf_counter(), now["octavo_engine_steps_total", ""], now["octavo_generation_tokens_total", ""], parts)


def metrics() -> dict[tuple[str, str], float]:
    """Values of the server's metrics by name and `part`, where there is one."""
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(sample.name, sample.labels.get("part", "")): sample.value for family in families for sample in family.samples}


def print_table(points: list[Point]) -> None:
    table = Table(title="decoding; ms a step, and of them")
    for column in ("sequences", "context", "tokens/s", "first tokens, s", "step", *PARTS):
        table.add_column(column, justify="right")
    for point in points:
        cells = [f"{point.tokens_per_second:.0f}", f"{point.first_tokens:.2f}", f"{point.step_ms:.2f}"]
        table.add_row(str(point.sequences), str(point.context), *cells, *(f"{point.parts_ms[part]:.2f}" for part in PARTS))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

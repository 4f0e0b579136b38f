"""How fast Octavo is on this machine: `make bench`, or `python -m loadtest.bench [--model M] [--sequences 1 8 16 32 64] [--repeats 3]`.

In-process: `LLM.chat` on that many different questions, 60 to 70 tokens in the chat template, 64 new tokens each; prefill is 512 tokens
that no cache knows. Over HTTP: the same work as streaming chat completions against `octavo serve`, read by a client that does next to
nothing, so that it takes little of the machine that it measures; beside it the time to the first token, at the median of the streams, and
the API process's processor time for a token. Each figure is the median of the repeats; the two ways take turns. Memory is the resident set
of the engine process, less that of a process which has only imported PyTorch: weights, workspace, and the KV that this work filled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from loadtest.servers import PORT, cpu_seconds, engine_of, octavo, running

NEW_TOKENS = 64
PREFILL_TOKENS = 512
READY = f"http://127.0.0.1:{PORT}/ready"
Figures = dict[str, dict[str, list[float]]]  # a row of the table, its columns, one value a repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-http", action="store_true", help="in-process only")
    parser.add_argument("--deterministic", action="store_true", help="with this setting of the engine: what it costs on CUDA")
    parser.add_argument("--json", type=Path, help="write the medians there too")
    args = parser.parse_args()
    figures = {row: columns for row, columns in run_bench(args).items() if columns}
    medians = {row: {column: statistics.median(values) for column, values in columns.items()} for row, columns in figures.items()}
    print_table(medians)
    if args.json:
        args.json.write_text(json.dumps(medians, indent=1) + "\n")


def run_bench(args: argparse.Namespace) -> Figures:
    figures: Figures = {IN_PROCESS: {}, HTTP: {}, FIRST_TOKEN: {}, API_TIME: {}, SERVER: {}}
    llm = LLM(model=args.model, max_num_seqs=max(args.sequences), deterministic=args.deterministic)
    generate(llm, 1, "warm up")
    if args.no_http:
        measure(llm, None, args, figures)
        return figures
    command = octavo(args.model, max(args.sequences), others=["--deterministic"] if args.deterministic else [])
    for repeat in range(args.repeats):
        with running(command, READY) as (process, start_seconds):
            figures[SERVER].setdefault("start to ready, s", []).append(start_seconds)
            if repeat == args.repeats - 1:
                run_streams(1, "warm up")
                measure(llm, process, args, figures)
                memory = engine_of(process).memory_info().rss - imported_torch_bytes()
                figures[SERVER]["memory beyond PyTorch's, MiB"] = [memory / 2**20]
    return figures


IN_PROCESS, HTTP = "in-process, tokens/s", "over HTTP, tokens/s"
FIRST_TOKEN, API_TIME, SERVER = "first token, ms", "API process, us/token", "server"


def measure(llm: LLM, process: psutil.Process | None, args: argparse.Namespace, figures: Figures) -> None:
    for repeat in range(args.repeats):
        for count in args.sequences:
            column, salt = str(count), str(repeat)
            seconds = seconds_of(generate, llm, count, salt)
            figures[IN_PROCESS].setdefault(column, []).append(count * NEW_TOKENS / seconds)
            if process is None:
                continue
            before = cpu_seconds(process.pid)
            started = time.perf_counter()
            first_tokens = run_streams(count, salt)
            seconds = time.perf_counter() - started
            used = cpu_seconds(process.pid) - before
            figures[HTTP].setdefault(column, []).append(count * NEW_TOKENS / seconds)
            figures[FIRST_TOKEN].setdefault(column, []).append(1e3 * statistics.median(first_tokens))
            figures[API_TIME].setdefault(column, []).append(1e6 * used / (count * NEW_TOKENS))
        prompt = [(repeat * 7919 + i * 31) % 40_000 + 100 for i in range(PREFILL_TOKENS)]
        seconds = seconds_of(llm.generate, prompt, SamplingParams(temperature=0, max_tokens=1), False)
        figures[IN_PROCESS].setdefault(f"prefill {PREFILL_TOKENS}", []).append(PREFILL_TOKENS / seconds)


def seconds_of(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def prompt_of(i: int, salt: str) -> str:
    return f"{salt}-{i}: Write a short story about a traveller who has lost the way in a forest and meets an old friend there, number {i}."


def generate(llm: LLM, count: int, salt: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    llm.chat([[{"role": "user", "content": prompt_of(i, salt)}] for i in range(count)], params, use_tqdm=False)


def run_streams(count: int, salt: str, port: int = PORT) -> list[float]:
    """Seconds to the first token of each of `count` streams that start together."""

    async def all_streams() -> list[float]:
        return await asyncio.gather(*(stream(prompt_of(i, salt), port) for i in range(count)))

    return asyncio.run(all_streams())


def request(prompt: str) -> dict[str, object]:
    """The body of a chat completion of NEW_TOKENS tokens."""
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}


async def stream(prompt: str, port: int) -> float:
    """One streaming chat completion, read as bare lines."""
    payload = msgspec.json.encode(request(prompt) | {"stream": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    first, last = None, b""
    while b"data: [DONE]" not in last:
        received = await reader.read(1 << 16)
        if not received:
            raise SystemExit(f"the server closed the stream after: {last!r}")
        if first is None and b'"content":"' in received.replace(b'"content":""', b""):
            first = time.perf_counter() - started
        last = (last + received)[-64:]
    writer.close()
    return first if first is not None else time.perf_counter() - started


def imported_torch_bytes() -> int:
    script = "import torch, psutil; print(psutil.Process().memory_info().rss)"
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout)


def print_table(medians: dict[str, dict[str, float]]) -> None:
    columns = list(dict.fromkeys(column for row in medians.values() for column in row))
    table = Table(title=f"{NEW_TOKENS} new tokens for each of so many sequences; medians")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in medians.items():
        table.add_row(name, *(_cell(row.get(column)) for column in columns))
    Console(width=160).print(table)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


if __name__ == "__main__":
    main()

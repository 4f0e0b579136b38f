"""Octavo beside its peers on this machine, the same work in turn: `python -m loadtest.compare --llama-cpp PYTHON`.

PYTHON is the interpreter of an environment of its own in which `llama-cpp-python` is installed (built there, so that it uses this
processor). Every side gets the same GGUF, the same prompts as token ids (about 40 tokens each) and greedy decoding of 64 tokens per
sequence in one process with as many threads as there are cores; prefill is one prompt of 512 tokens. The sides take turns within each
repeat, so that the machine's moods meet both; figures are medians, ratios are medians of the ratios within a repeat.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.loader.source import resolve_model

NEW_TOKENS = 64
PREFILL_TOKENS = 512
PREFILL = "prefill 512"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", metavar="PYTHON", required=True)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    source = resolve_model(None)
    prompts = make_prompts(source.tokenizer(), max(args.sequences))
    most = max(args.sequences)
    sides = {
        "Octavo": Side([sys.executable, "-m", "loadtest.peers.octavo"], source.path, most),
        "llama.cpp": Side([args.llama_cpp, str(Path(__file__).parent / "peers" / "llama_cpp_batch.py")], source.path, most),
    }
    cases: list[tuple[str, list[list[int]], int]] = [(str(n), prompts[:n], NEW_TOKENS) for n in args.sequences]
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for repeat in range(args.repeats + 1):
        long_prompt = [(repeat * 7919 + i * 31) % 40_000 + 100 for i in range(PREFILL_TOKENS)]
        for case, case_prompts, new_tokens in [*cases, (PREFILL, [long_prompt], 1)]:
            # A number of its own in front: no side's cache knows a prompt from the repeat before.
            fresh = [[100 + repeat, *prompt] for prompt in case_prompts]
            for name, side in sides.items():
                seconds = side.run(fresh, new_tokens)
                if repeat:  # the first warms up
                    work = PREFILL_TOKENS if case == PREFILL else len(fresh) * new_tokens
                    figures[name].setdefault(case, []).append(work / seconds)
    for side in sides.values():
        side.close()
    print_table(figures, [case for case, _, _ in cases] + [PREFILL])


class Side:
    """One engine in a process of its own, which reads one JSON line per job and answers with the seconds that it took."""

    def __init__(self, command: list[str], model: Path, max_num_seqs: int, settings: Sequence[str] = ()) -> None:
        arguments = [str(model), str(max_num_seqs), str(os.cpu_count()), *settings]
        self._process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def run(self, prompts: list[list[int]], new_tokens: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a peer ended with status {self._process.wait()}")
        return float(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def make_prompts(tokenizer: Any, count: int) -> list[list[int]]:
    text = "Write a short story about a traveller who has lost the way in a forest and meets an old friend there, number {}. It begins so:"
    return [tokenizer.encode(text.format(i)) for i in range(count)]


def print_table(figures: dict[str, dict[str, list[float]]], cases: list[str]) -> None:
    table = Table(title=f"tokens per second, {NEW_TOKENS} new tokens a sequence (median)")
    table.add_column("sequences")
    for case in cases:
        table.add_column(case, justify="right")
    for name, row in figures.items():
        table.add_row(name, *(f"{statistics.median(row[case]):.0f}" for case in cases))
    for name in list(figures)[1:]:
        ratios = {c: [a / b for a, b in zip(figures["Octavo"][c], figures[name][c], strict=True)] for c in cases}
        table.add_row(f"Octavo / {name}", *(f"{statistics.median(ratios[case]):.1f}" for case in cases))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

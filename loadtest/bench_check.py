"""Whether a change has made Octavo slower: `make bench-check`; `make bench-record` writes what later checks compare with.

Speeds are compared in units of what the machine could do in the same seconds (loadtest/calibration.py): prompts and many sequences in
float32 products, one sequence in bytes read. Work and calibration take turns; a figure is the median of the turns. The records, one file
for each kind of machine, are in loadtest/records/, in git: they are those of the last commit that recorded any. On a busy machine figures
differ by a tenth or two for no reason, so only what is lost beyond the tolerance counts, and only when it is lost twice.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from loadtest.bench import NEW_TOKENS, PREFILL_TOKENS, READY, generate, run_streams, seconds_of
from loadtest.calibration import CALIBRATIONS
from loadtest.servers import octavo, running

RECORDS = Path(__file__).parent / "records"
UNITS = {"1 sequence": "memory", "8 sequences": "compute", "64 sequences": "compute", "prefill": "compute", "32 streams": "compute"}
Ratios = dict[str, float]  # tokens a second over GFLOP/s or GB/s, by UNITS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the figures instead of comparing them")
    parser.add_argument("--tolerance", type=float, default=0.15, help="share of a recorded speed that may be missing")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    path = RECORDS / f"{machine_kind()}.json"
    if args.record:
        ratios = measure(args.turns)
        record = {"commit": commit(), "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()}}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"recorded in {path}")
        return
    if not path.exists():
        raise SystemExit(
            f"nothing is recorded of a machine of this kind, {path.stem}: run `make bench-record` on the commit to compare with"
        )
    record = json.loads(path.read_text())
    if os.getloadavg()[0] > 1:
        print(f"others use this machine (load {os.getloadavg()[0]:.1f}): what is found slower may be theirs")
    found = measure(args.turns)
    if lost(record["ratios"], found, args.tolerance):
        again = measure(args.turns)
        found = {name: max(ratio, again[name]) for name, ratio in found.items()}
    slower = lost(record["ratios"], found, args.tolerance)
    print_table(record, found, slower)
    if slower:
        raise SystemExit(f"slower than at {record['commit']} by more than {args.tolerance:.0%}: {', '.join(slower)}")
    print(f"as fast as at {record['commit']}, within {args.tolerance:.0%}")


def lost(recorded: Ratios, found: Ratios, tolerance: float) -> list[str]:
    """The names of what is slower than recorded by more than the tolerance. What was never recorded cannot be."""
    return [name for name, ratio in recorded.items() if found[name] < (1 - tolerance) * ratio]


def measure(turns: int) -> Ratios:
    ratios: dict[str, list[float]] = {name: [] for name in UNITS}
    llm = LLM(max_num_seqs=64)
    with running(octavo(None, 64), READY):
        for turn in range(-1, turns):
            for name, (work, num_tokens) in cases(llm, turn).items():
                calibrate = CALIBRATIONS[UNITS[name]]
                before = calibrate()
                seconds = seconds_of(work)
                machine = (before + calibrate()) / 2
                if turn >= 0:  # the first warms up
                    ratios[name].append(num_tokens / seconds / machine)
    return {name: statistics.median(values) for name, values in ratios.items()}


def cases(llm: LLM, turn: int) -> dict[str, tuple[Callable[[], object], int]]:
    """By name: work that no cache knows from an earlier turn, and its tokens."""
    prompt = [(turn * 7919 + i * 31) % 40_000 + 100 for i in range(PREFILL_TOKENS)]
    one_token = SamplingParams(temperature=0, max_tokens=1)
    return {
        "1 sequence": (lambda: generate(llm, 1, f"{turn}"), NEW_TOKENS),
        "8 sequences": (lambda: generate(llm, 8, f"{turn}"), 8 * NEW_TOKENS),
        "64 sequences": (lambda: generate(llm, 64, f"{turn}"), 64 * NEW_TOKENS),
        "prefill": (lambda: llm.generate(prompt, one_token, use_tqdm=False), PREFILL_TOKENS),
        "32 streams": (lambda: run_streams(32, f"{turn}"), 32 * NEW_TOKENS),
    }


def machine_kind() -> str:
    """As a file's name: the processor, its family and model, as one name covers several, and how many of its cores are ours."""
    info = Path("/proc/cpuinfo")
    lines = dict(re.findall(r"(model name|cpu family|model)\s*: (.*)", info.read_text())) if info.exists() else {}
    name = " ".join((lines.get("model name", platform.machine()), lines.get("cpu family", ""), lines.get("model", "")))
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{os.cpu_count()}-cores"


def commit() -> str:
    """What is measured; `-dirty` where it has changes that are in no commit yet."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip() or "no commit"


def print_table(record: dict[str, Ratios], found: Ratios, slower: list[str]) -> None:
    table = Table(title="tokens per second, for each GFLOP/s (or, of one sequence, GB/s) of the machine at the time")
    for column in ("", f"at {record['commit']}", "now", "now / then", ""):
        table.add_column(column, justify="right")
    for name, ratio in record["ratios"].items():
        verdict = "slower" if name in slower else ""
        table.add_row(name, f"{ratio:.2f}", f"{found[name]:.2f}", f"{found[name] / ratio:.2f}", verdict)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

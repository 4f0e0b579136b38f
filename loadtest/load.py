"""Open-loop load on a running server: `python -m loadtest.load --workload shared-prefix [--rate 4] [--requests 60] [--url URL]`.

Requests arrive when they arrive, whether or not the server has answered those before. Load and figures are NVIDIA's AIPerf's; the
workloads in loadtest/workloads/ are files of its own format. It lives in an environment of its own in the user's cache, which is made at
first use, as its dependencies are pinned otherwise than ours (`--aiperf EXECUTABLE` names one that is there). Goodput counts the requests
that kept the bounds in the workload's `slos`. What AIPerf found in full is in the directory of `--artifacts`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.loader.resolve import resolve_model
from loadtest.peers.hugging_face import CACHE, tokenizer_directory
from loadtest.peers.program import program

WORKLOADS = Path(__file__).parent / "workloads"
AIPERF_VERSION = "0.13.0"
Figures = dict[str, float]


def main() -> None:
    names = sorted(path.stem for path in WORKLOADS.glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=names, default=names)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, help="requests a second; default: the workload's own")
    parser.add_argument("--requests", type=int, help="default: the workload's own")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, lengths and texts: the same seed is the same load")
    parser.add_argument("--model", help="whose tokenizer counts, as `octavo serve` takes it")
    parser.add_argument("--aiperf", metavar="EXECUTABLE", type=program, help="of an AIPerf that is installed")
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tokenizer = tokenizer_directory(resolve_model(args.model))
    aiperf = args.aiperf or installed_aiperf()
    found: dict[str, Figures] = {}
    for name in args.workload:
        artifacts = args.artifacts / name if args.artifacts else None
        found[name] = run_load(aiperf, name, args.url, tokenizer, args.seed, args.rate, args.requests, artifacts)
    print_table(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


def installed_aiperf() -> str:
    """The executable, in an environment that is made if there is none."""
    directory = CACHE / f"aiperf-{AIPERF_VERSION}"
    if not (directory / "bin" / "aiperf").exists():
        print(f"installing AIPerf {AIPERF_VERSION} into {directory}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([directory / "bin" / "pip", "install", "-q", f"aiperf=={AIPERF_VERSION}"], check=True)
    return str(directory / "bin" / "aiperf")


def run_load(
    aiperf: str,
    workload: str,
    url: str,
    tokenizer: Path,
    seed: int,
    rate: float | None = None,
    requests: int | None = None,
    artifacts: Path | None = None,
) -> Figures:
    """One workload on one server. Raises SystemExit when AIPerf fails."""
    variables = {"URL": url, "MODEL": served_model(url), "TOKENIZER": tokenizer, "SEED": seed, "RATE": rate, "REQUESTS": requests}
    environment = {f"LOAD_{name}": str(value) for name, value in variables.items() if value is not None}
    with tempfile.TemporaryDirectory() as directory:
        target = artifacts or Path(directory)
        command = [aiperf, "profile", "--config", WORKLOADS / f"{workload}.yaml", "--ui", "none", "--artifact-dir", target]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
        report = target / "profile_export_aiperf.json"
        if done.returncode or not report.exists():
            raise SystemExit(f"AIPerf ended with status {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return figures_of(json.loads(report.read_text()))


def served_model(url: str) -> str:
    """The name that a server gives its model."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return str(json.load(answer)["data"][0]["id"])


def figures_of(report: dict[str, Any]) -> Figures:
    """Milliseconds, and rates a second, by name; without what a workload does not give, as time to first token where nothing streams."""
    figures = {}
    for name, (metric, statistic) in FIGURES.items():
        value = report.get(metric, {}).get(statistic)
        if value is not None:
            figures[name] = round(value, 3)
    return figures


FIGURES = {
    "requests": ("request_count", "avg"),
    "failed, %": ("request_error_rate", "avg"),
    "requests/s": ("request_throughput", "avg"),
    "tokens/s": ("output_token_throughput", "avg"),
    "goodput, requests/s": ("goodput", "avg"),
    "cached prompt tokens, %": ("overall_usage_prompt_cache_read_pct", "avg"),
    **{f"first token {p}": ("time_to_first_token", p) for p in ("p50", "p90", "p99")},
    **{f"between tokens {p}": ("inter_token_latency", p) for p in ("p50", "p90", "p99")},
    **{f"whole answer {p}": ("request_latency", p) for p in ("p50", "p90", "p99")},
}


def print_table(found: dict[str, Figures]) -> None:
    table = Table(title="times in ms")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for figure in FIGURES:
        values = [figures.get(figure) for figures in found.values()]
        table.add_row(figure, *("" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

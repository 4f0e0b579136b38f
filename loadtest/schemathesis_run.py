"""schemathesis over /openapi.json: `python -m loadtest.schemathesis_run [--url URL] [--cases 5000] [--seed 1] [--operation ID ...]`.

Starts a small server, unless it is told the URL of one, and sends what its document allows and what it does not, until at least so many
cases were sent. Ends with a verdict, and status 1 if anything was answered with 500 or above, if a refusal was without the error object,
if an answer had not the status, the content type or the schema that the document names, or if what the document forbids was accepted.
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

from loadtest.verdict import Verdict
from tests.server.live_server import running_server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "error_object",
)
LONGEST_ANSWER = 30  # seconds
_FLAGS = ("--max-model-len", "256")  # short, so that prompts beyond it are met too
_OPTIONS = ("--phases=coverage,fuzzing", "--workers=2", "--continue-on-failure", "--no-shrink", "--generation-database=none")
_QUIET = ("--suppress-health-check=all", "--warnings=off", "--no-color")
_MOST_RUNS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running server; left out: one is started")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operation", action="append", default=[], help="the id of one; left out: all")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if args.url:
            report(args, args.url, directory)
            return
        with running_server(directory, *_FLAGS, "--batch-dir", str(directory / "batches")) as server:
            server.wait_until_ready()
            report(args, server.url, directory)


def report(args: argparse.Namespace, url: str, directory: Path) -> None:
    """Run schemathesis until enough cases were sent, and print the verdict."""
    verdict = Verdict("schemathesis")
    sent, failed = 0, 0
    for seed in range(args.seed, args.seed + _MOST_RUNS):
        found = run(url, seed, args.operation, directory)
        sent += found["test_cases"]["generated"]
        failed += len(found["failures"]) + len(found["errors"])
        if sent >= args.cases or failed:
            break
    verdict.check("cases sent", sent, f"at least {args.cases}", sent >= args.cases)
    verdict.check("failed", failed, "0", not failed)
    with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
        verdict.check("/ready at the end", answer.status, "200", answer.status == 200)
    verdict.end()


def run(url: str, seed: int, operations: list[str], directory: Path) -> dict[str, Any]:
    """One run, which prints what fails and how it is repeated. Returns schemathesis' own report."""
    path = directory / f"report-{seed}.json"
    chosen = [f"--include-operation-id={name}" for name in operations]
    options = [f"--checks={','.join(CHECKS)}", f"--seed={seed}", f"--request-timeout={LONGEST_ANSWER}", "--max-examples=40"]
    command = [Path(sys.executable).with_name("schemathesis"), "run", f"{url}/openapi.json", *chosen, *options, *_OPTIONS, *_QUIET]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "loadtest.schemathesis_hooks", "PYTHONPATH": str(Path.cwd())}
    # It keeps a folder of its own where it runs.
    subprocess.run([*map(str, command), f"--report-json-path={path}"], env=environment, cwd=directory, check=False)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    main()

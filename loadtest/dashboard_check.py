"""Every query of the dashboard and the alerts, asked of a Prometheus that watches servers at work: `python -m loadtest.dashboard_check`.

nginx and Prometheus run with the very files that docker/ mounts. Each query must give data, and no rule may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from loadtest.client import ask, connection, receive, send
from loadtest.nginx import nginx
from loadtest.prometheus import Prometheus, prometheus
from loadtest.verdict import Verdict
from server.access.keys import add_key
from tests.server.live_server import running_server

DASHBOARD = Path(__file__).parent.parent / "docker" / "grafana" / "dashboards" / "octavo.json"
CLIENTS = 6
# A pool for a few sequences, so that some are preempted and blocks go to host memory and back.
_FLAGS = ("--num-gpu-blocks-override", "40", "--max-model-len", "512", "--swap-space", "16M", "--no-access-log")


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Title of the panel and expression, of every query, for all servers and rates over half a minute."""
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [(title, expr.replace("$instance", ".*").replace("$__rate_interval", "30s")) for title, expr in found]


async def load(url: str, keys: list[str], is_over: asyncio.Event) -> None:
    """Clients that ask again and again what they asked before, leave early, and now and then ask for what is refused."""

    async def client(number: int) -> None:
        rng = random.Random(number)
        headers = {"Authorization": f"Bearer {keys[number % len(keys)]}", "X-Session-ID": str(number)}
        while not is_over.is_set():
            prompt = f"{number}: " + "The quick brown fox jumps over the lazy dog. " * rng.randrange(4, 12)
            body = {"prompt": prompt, "max_tokens": rng.randrange(60, 120), "stream": True, "ignore_eos": rng.random() < 0.7}
            if rng.random() < 0.1:
                body["max_tokens"] = -1
            if rng.random() < 0.1:
                async with connection(url) as (reader, writer):
                    await send(writer, "/v1/completions", body, headers)
                    _, pieces = await receive(reader)
                    await anext(pieces)
                continue
            await ask(url, "/v1/completions", body, headers)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))


def check(verdict: Verdict, seen: Prometheus) -> None:
    deadline = time.monotonic() + 20
    while any(rule["health"] == "unknown" for rule in seen.rules()) and time.monotonic() < deadline:
        time.sleep(0.5)
    dashboard = json.loads(DASHBOARD.read_text())
    asked = queries(dashboard)
    empty = [f"{title}: {expr}" for title, expr in asked if not _has_data(seen, expr)]
    verdict.check("queries of the dashboard without data", len(empty), "0", not empty)
    for line in empty:
        verdict.note("", line)
    verdict.note("queries of the dashboard", len(asked))
    still = [title for title, expr in asked if all(float(series["value"][1]) == 0 for series in seen.query(expr))]
    verdict.note("of them, only 0", f"{len(still)}: {', '.join(dict.fromkeys(still))}")
    servers = seen.label_values("octavo_sequences_running", "instance")
    verdict.check("servers to choose from", len(servers), "2", len(servers) == 2)
    rules = seen.rules()
    unwell = [f"{rule['name']}: {rule.get('lastError', rule['health'])}" for rule in rules if rule["health"] != "ok"]
    verdict.check(f"of {len(rules)} alerts, failing", unwell or 0, "0", bool(rules) and not unwell)
    # What an alert compares must be there: of a metric that is not, no comparison is ever true.
    blind = [rule["name"] for rule in rules if not all(_has_data(seen, part) for part in _compared(rule["query"]))]
    verdict.check("alerts that look at nothing", blind or 0, "0", not blind)


def _compared(query: str) -> list[str]:
    """The left sides of an alert's comparisons, which are joined by `and`. What is served well has no 5xx, and may have no 429."""
    sides = [part.rpartition(" > ")[0] or part.rpartition(" == ")[0] for part in query.split(" and ")]
    return [side.replace('status=~"5.."', 'status=~"..."').replace('status="429"', 'status="400"') for side in sides]


def _has_data(seen: Prometheus, expression: str) -> bool:
    return any(not math.isnan(float(series["value"][1])) for series in seen.query(expression))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=24.0, help="of load before Prometheus is asked")
    args = parser.parse_args()
    verdict = Verdict(f"the dashboard after {args.seconds:g} s of load")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as at_end:
        directory = Path(scratch)
        keys_file = directory / "keys"
        keys = [add_key(keys_file, name, None, admin=False, requests=None, tokens=None) for name in ("front-end", "nightly")]
        servers = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            servers.append(at_end.enter_context(running_server(directory / name, "--api-keys-file", str(keys_file), *_FLAGS)))
        for server in servers:
            server.wait_until_ready()
        seen = at_end.enter_context(prometheus(directory, [urlsplit(server.url).netloc for server in servers]))
        url = at_end.enter_context(nginx(directory, (servers[0].url, servers[1].url)))

        async def watch() -> None:
            is_over = asyncio.Event()
            loading = asyncio.create_task(load(url, keys, is_over))
            await asyncio.sleep(args.seconds / 2)
            for child in psutil.Process(servers[0].process.pid).children():
                child.kill()  # an engine, whose restart is to be seen
            await asyncio.sleep(args.seconds / 2)
            try:
                await asyncio.to_thread(check, verdict, seen)
            finally:
                is_over.set()
                await loading

        asyncio.run(watch())
    verdict.end()


if __name__ == "__main__":
    main()

"""Two servers behind nginx, restarted in turn under load, and no request may fail: `python -m loadtest.rolling_restart [--rounds 1]`.

nginx runs with the very file that docker/ mounts. Each server is stopped with SIGTERM while it answers, must end with exit status 0,
and is started again on its port; the other takes what comes meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.client import ConnectionCutError, ask
from loadtest.nginx import free_port, nginx
from loadtest.verdict import Ledger, Verdict
from tests.server.live_server import RunningServer, running_server

CLIENTS = 8
_FLAGS = ("--kv-cache-memory", "64M", "--no-access-log")


class Load:
    """Clients that ask all the time, streaming and not, each in a session of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ledger = Ledger()
        self._stopped = False

    async def run(self, work: Any) -> None:
        clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        try:
            await work
        finally:
            self._stopped = True
            await asyncio.gather(*clients)

    async def _client(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stopped:
            body = {
                "messages": [{"role": "user", "content": f"Say something of the number {number}."}],
                "max_tokens": rng.randrange(1, 80),
                "stream": rng.random() < 0.7,
                "ignore_eos": True,
            }
            self.ledger.sent += 1
            try:
                headers = {"X-Session-ID": str(number)}
                self.ledger.enter(await asyncio.wait_for(ask(self.url, "/v1/chat/completions", body, headers), 60))
            except (ConnectionCutError, OSError, TimeoutError) as error:
                self.ledger.lost.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(rng.random() * 0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="restarts of each server")
    args = parser.parse_args()
    statuses: list[int] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as at_end:
        directory = Path(scratch)
        flags = [(*_FLAGS, "--port", str(free_port())) for _ in range(2)]

        def start(number: int) -> RunningServer:
            place = Path(tempfile.mkdtemp(dir=directory))
            server = at_end.enter_context(running_server(place, *flags[number]))
            server.wait_until_ready()
            return server

        servers = [start(0), start(1)]
        load = Load(at_end.enter_context(nginx(directory, (servers[0].url, servers[1].url))))

        async def restart_in_turn() -> None:
            await asyncio.sleep(3)
            for number in (0, 1) * args.rounds:
                statuses.append(await asyncio.to_thread(servers[number].stop, signal.SIGTERM, 40))
                await asyncio.sleep(1)  # with one server
                servers[number] = await asyncio.to_thread(start, number)
                await asyncio.sleep(2)

        asyncio.run(load.run(restart_in_turn()))
        shares = [server.metric('octavo_http_responses_total{method="POST",status="200"}') for server in servers]
    verdict = Verdict(f"rolling restart, {2 * args.rounds} restarts under load")
    verdict.ledger(load.ledger)
    refused = load.ledger.refused.total()
    verdict.check("failed", refused, "0", refused == 0)
    verdict.check("exit statuses", statuses, "all 0", not any(statuses))
    verdict.note("answered by each server since its last start", [f"{share:g}" for share in shares])
    verdict.end()


if __name__ == "__main__":
    main()

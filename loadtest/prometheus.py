"""Prometheus as docker/ configures it, looking at servers on this machine: Debian's prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from loadtest.nginx import free_port

DIRECTORY = Path(__file__).parent.parent / "docker" / "prometheus"


def is_installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


@dataclass
class Prometheus:
    """A running one."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises ValueError with what Prometheus says of one that it does not understand."""
        answer = self._get("query", query=expression)
        result: list[dict[str, Any]] = answer["result"]
        return result

    def label_values(self, metric: str, label: str) -> list[str]:
        answer = httpx.get(f"{self.url}/api/v1/label/{label}/values", params={"match[]": metric}).json()
        values: list[str] = answer["data"]
        return values

    def rules(self) -> list[dict[str, Any]]:
        """Every rule of alerts.yml with its health and state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **params: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=params).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        data: dict[str, Any] = answer["data"]
        return data


@contextmanager
def prometheus(directory: Path, servers: list[str]) -> Iterator[Prometheus]:
    """Runs Prometheus with its files in `directory` and yields it once it answers. `servers`: addresses, as 127.0.0.1:8000."""
    for name in ("prometheus.yml", "alerts.yml"):
        (directory / name).symlink_to(DIRECTORY / name)
    (directory / "targets").mkdir()
    (directory / "targets" / "octavo.yml").write_text(json.dumps([{"targets": servers}]))
    address = f"127.0.0.1:{free_port()}"
    log_path = directory / "prometheus.log"
    flags = (f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}")
    with log_path.open("wb") as log:
        process = subprocess.Popen(["prometheus", *flags], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not _is_ready(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not start: {log_path.read_text()}")
            time.sleep(0.1)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready").status_code == 200
    except httpx.TransportError:
        return False

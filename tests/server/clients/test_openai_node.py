"""The official npm package of OpenAI under Node: node/*.test.mjs, against the live server.

The package's newest release for Node 20 is pinned in node/package.json. It is installed once, beside that file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from live_server import RunningServer

FOLDER = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the packages beside the tests."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no node or no npm here")
    major = int(subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.lstrip("v").partition(".")[0])
    if major < 20:
        pytest.skip(f"node is {major}, but the client needs 20")
    installed, locked = FOLDER / "node_modules" / ".package-lock.json", FOLDER / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < locked.stat().st_mtime:
        # `npm ci` takes what is not in its cache from the registry.
        done = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=FOLDER, capture_output=True, text=True, timeout=240)
        if done.returncode and re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ECONNRESET|ENETUNREACH", done.stderr):
            pytest.skip("npm cannot reach its registry")
        assert done.returncode == 0, done.stderr
    return node


@pytest.mark.parametrize("file", ["chat.test.mjs", "rest.test.mjs"])
def test_the_client_finds_what_it_expects(node: str, server: RunningServer, file: str) -> None:
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", file],
        cwd=FOLDER,
        env={**os.environ, "OCTAVO_URL": server.url},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert re.search(r"pass [1-9]", done.stdout)

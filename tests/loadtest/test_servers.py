"""Servers that are measured, and what is said when one cannot be."""

from __future__ import annotations

import argparse
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import psutil
import pytest

from loadtest.peers.program import program
from loadtest.servers import running

SERVE = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_port_on_which_another_server_answers_is_not_measured() -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as other:
        thread = Thread(target=other.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(SystemExit, match="another server answers"), running([*SERVE, "0"], f"http://127.0.0.1:{other.server_port}/"):
            pass
        other.shutdown()


def test_a_server_that_ends_before_it_answers_is_named_with_its_command() -> None:
    with pytest.raises(SystemExit, match=r"did not start.*no-such-flag"), running([*SERVE, "--no-such-flag"], "http://127.0.0.1:9/"):
        pass


def test_what_a_server_has_started_ends_with_it() -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as free:
        port = free.server_port
    start = f"import subprocess; subprocess.run({[*SERVE, str(port)]!r})"
    with running([sys.executable, "-c", start], f"http://127.0.0.1:{port}/") as (process, seconds):
        (child,) = process.children()
        assert seconds > 0
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_program_that_is_not_there_is_named() -> None:
    assert program("sh").endswith("/sh")
    with pytest.raises(argparse.ArgumentTypeError, match="/no/such/python"):
        program("/no/such/python")

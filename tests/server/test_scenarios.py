"""The scenarios of loadtest/, short."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadtest import nginx, prometheus


def _run(*arguments: str) -> None:
    result = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_nothing_is_lost_in_chaos() -> None:
    # Too short to tell memory that leaks from memory that is used for the first time: the command says more in ten minutes.
    _run("loadtest.chaos", "--seconds", "40", "--kill-every", "10")


@pytest.mark.slow
@pytest.mark.skipif(not nginx.is_installed(), reason="needs nginx and envsubst: on Debian, apt-get install nginx-light gettext-base")
def test_servers_behind_nginx_are_restarted_in_turn_and_no_request_fails() -> None:
    _run("loadtest.rolling_restart")


@pytest.mark.slow
@pytest.mark.skipif(
    not (nginx.is_installed() and prometheus.is_installed()),
    reason="needs nginx and Prometheus: on Debian, nginx-light gettext-base prometheus",
)
def test_every_query_of_the_dashboard_gives_data() -> None:
    _run("loadtest.dashboard_check")

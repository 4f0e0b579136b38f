"""The supervisor: a small process in front of the server, which starts it again when it dies.

It holds the listening socket and never accepts from it, so the port stays ours and connections that come while there is no server wait
in the kernel's queue for the next one. The server is forked off before anything heavy is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

from server.config import ServerConfig

EXIT_GAVE_UP = 4

_MAX_QUICK_DEATHS = 5  # in a row
_QUICK = 60.0  # seconds since the start
_FIRST_PAUSE = 1.0  # seconds before the second restart in a row; the first is at once, each further pause is twice as long

# What the server ends with by intent, or what a new start would not change: 2 to 5 are those of server/cli.py.
_FINAL_STATUSES = frozenset({0, 2, 3, 5, 128 + signal.SIGINT, 128 + signal.SIGTERM})
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_WATCHED = _STOP_SIGNALS | {signal.SIGHUP, signal.SIGCHLD}
_PR_SET_PDEATHSIG = 1


def supervise(config: ServerConfig) -> int | None:
    """Returns None in each process that is to be a server, and in the end the exit status in the supervisor's own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    quick_deaths = 0
    while True:
        supervisor = os.getpid()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become_server(supervisor)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            return None
        _set_up(config)
        end = _tend(pid)
        if end.told_to_stop or end.status in _FINAL_STATUSES:
            return end.status
        quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK else 1
        if quick_deaths >= _MAX_QUICK_DEATHS:
            _log(f"the server died {quick_deaths} times, each within {_QUICK:g} s of its start: giving up")
            return EXIT_GAVE_UP
        pause = _FIRST_PAUSE * 2 ** (quick_deaths - 2) if quick_deaths > 1 else 0.0
        _log(f"the server died ({end.reason}): starting it again" + (f" in {pause:g} s" if pause else ""))
        if pause and signal.sigtimedwait(_STOP_SIGNALS, pause) is not None:
            return 0


@dataclass(frozen=True)
class _End:
    """How a server ended."""

    status: int  # as a shell tells it: 128 + n for signal n
    told_to_stop: bool

    @property
    def reason(self) -> str:
        return signal.Signals(self.status - 128).name if self.status > 128 else f"exit status {self.status}"


def _tend(pid: int) -> _End:
    """Passes signals on to the server, until it has ended."""
    told_to_stop = False
    while True:
        number = signal.sigwait(_WATCHED)
        if number != signal.SIGCHLD:
            os.kill(pid, number)
            told_to_stop = told_to_stop or number in _STOP_SIGNALS
        ended, wait_status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(wait_status)
            return _End(code if code >= 0 else 128 - code, told_to_stop)


def _become_server(supervisor: int) -> None:
    # A group of its own: Ctrl-C in a terminal reaches the supervisor, which passes it on once. A second one would end requests.
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it means something to a server that is up, and must not end one that is not
    if sys.platform == "linux":
        # Without a supervisor nobody would start it again: it drains, and leaves the port.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os.kill(os.getpid(), signal.SIGTERM)


def _set_up(config: ServerConfig) -> None:
    # Imported here, when the server's process has split off, which has better things to do first.
    import setproctitle

    from server.observability import logs

    setproctitle.setproctitle("octavo: supervisor")
    logs.set_up(config)


def _log(message: str) -> None:
    from server.observability.logs import logger

    logger.error(message)

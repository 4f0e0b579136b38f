"""The loop of `octavo top`: look, draw, wait for the next second or for a key."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from server.top.frame import Frame
from server.top.state import History, Source, UnreachableError

_HINT = "q quits"
_FIRST_GAP = 0.5  # seconds between the two looks that one frame needs for its rates


def show_once(source: Source, console: Console) -> int:
    """Print one frame; returns the exit status. Raises UnreachableError."""
    history = History()
    history.add(source.state(), time.monotonic())
    time.sleep(_FIRST_GAP)
    history.add(source.state(), time.monotonic())
    console.print(Frame(source.url, history))
    return 0


def show_live(source: Source, console: Console, interval: float) -> int:
    """Draw a frame every `interval` seconds until somebody presses q or Ctrl-C; returns the exit status.

    A server that goes away is waited for.
    """
    history = History()
    with contextlib.suppress(KeyboardInterrupt), _single_keys() as has_keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            trouble = None
            try:
                history.add(source.state(), time.monotonic())
            except UnreachableError as error:
                trouble = f"trying again: {error}"
            live.update(Frame(source.url, history, trouble, _HINT), refresh=True)
            if _wait_for_quit(began + interval, has_keys):
                break
    return 0


def _wait_for_quit(until: float, has_keys: bool) -> bool:
    """Waits for a time; True as soon as q is pressed."""
    while (left := until - time.monotonic()) > 0:
        if not has_keys:
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in ("q", "Q", ""):  # nothing: the terminal is gone
                return True
    return False


@contextlib.contextmanager
def _single_keys() -> Iterator[bool]:
    """Keys arrive as they are pressed, and are not shown; yields whether there is a terminal to press them on."""
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield True
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

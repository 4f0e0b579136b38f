"""`octavo chat` against the real server, its input and output piped."""

from __future__ import annotations

import subprocess
import sys

from live_server import RunningServer


def _talk(server: RunningServer, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server.cli", "chat", "--url", server.url, "--temperature", "0", "--max-tokens", "6", *flags]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_a_conversation_goes_on_until_exit_and_starts_anew_after_reset(server: RunningServer) -> None:
    result = _talk(server, "Say hi\nAnd again\n/reset\nSay hi\n/exit\nnever sent\n", "--system", "Be brief.")
    assert result.returncode == 0, result.stderr
    first, second, forgotten, again = result.stdout.splitlines()
    assert forgotten == "(forgotten)"
    assert first == again, "a greedy answer to the same conversation is the same"
    assert first
    assert second


def test_a_conversation_that_leaves_less_room_than_the_longest_answer_is_not_refused(server: RunningServer) -> None:
    result = _talk(server, "word " * 970 + "\n", "--max-tokens", "500")
    assert result.returncode == 0
    assert not result.stderr


def test_an_error_is_shown_and_the_conversation_goes_on(server: RunningServer) -> None:
    result = _talk(server, "x " * 2000 + "\nSay hi\n")
    assert result.returncode == 0
    assert "maximum context length" in result.stderr
    assert result.stdout.strip()

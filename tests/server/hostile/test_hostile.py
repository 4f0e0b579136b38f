"""Twelve hundred malformed and hostile requests: each is refused with OpenAI's error object, at once, and disturbs nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import api_attacks
import body_attacks
import grammar_attacks
import http_attacks
import httpx
import parameter_attacks
import pytest
from corpus import HELLO, Attack
from crowding import patience
from live_server import RunningServer

CATEGORIES: dict[str, Callable[[], list[Attack]]] = {
    "request lines": http_attacks.lines,
    "headers": http_attacks.headers,
    "smuggling": http_attacks.smuggling,
    "requests cut short": http_attacks.cut_short,
    "noise": http_attacks.noise,
    "content types": http_attacks.types,
    "places": http_attacks.places,
    "what is no JSON": body_attacks.json_texts,
    "depths": body_attacks.depths,
    "masses": body_attacks.masses,
    "conversations": body_attacks.messages,
    "types of parameters": parameter_attacks.types,
    "ranges of parameters": parameter_attacks.ranges,
    "contradictions": parameter_attacks.contradictions,
    "prompts": parameter_attacks.prompts,
    "templates": parameter_attacks.templates,
    "structures": parameter_attacks.structures,
    "grammars": grammar_attacks.refused,
    "heavy grammars": grammar_attacks.heavy,
    "responses": api_attacks.responses,
    "messages": api_attacks.messages,
    "embeddings": api_attacks.embeddings,
    "files and batches": api_attacks.files,
    "wrong doors": parameter_attacks.paths,
}

LONGEST = 1.0  # seconds that any of these may take
# Seconds between two pieces of a stream that runs beside them. A crowded machine takes some time for anything.
LONGEST_GAP = 1.0
_STREAM = {"prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": True, "temperature": 0, "stream": True}


def test_there_are_more_than_three_hundred_of_them() -> None:
    attacks = [attack for made in CATEGORIES.values() for attack in made()]
    assert len({attack.data for attack in attacks}) > 1000


@pytest.mark.parametrize("category", CATEGORIES)
def test_hostile_requests_are_refused_at_once_and_disturb_nobody(server: RunningServer, category: str) -> None:
    attacks = CATEGORIES[category]()
    with _a_stream_beside(server) as gaps:
        wrong = _attack(server, attacks)
    if max(gaps) > LONGEST_GAP:
        # The machine may have been busy with something else: twice it is not. (A server's first grammar also costs 0.25 s, once.)
        with _a_stream_beside(server) as gaps:
            wrong += _attack(server, attacks)
    assert not wrong, "\n".join(wrong)
    assert max(gaps) <= patience(LONGEST_GAP)
    assert server.is_ready()
    assert "Traceback" not in server.log


def _attack(server: RunningServer, attacks: list[Attack]) -> list[str]:
    """What is wrong with the answers."""
    wrong: list[str] = []
    for attack in attacks:
        began = time.monotonic()
        problem = _problem(attack, _send(server, attack))
        if time.monotonic() - began > LONGEST:
            # As above. (A grammar is compiled once, and then kept.)
            began = time.monotonic()
            _send(server, attack)
            took = time.monotonic() - began
            problem = problem or (f"took {took:.2f} s" if took > patience(LONGEST) else None)
        if problem is not None:
            wrong.append(f"{attack.name}: {problem}")
    return wrong


_VARIABLES = ("range", "namespace", "raise_exception", "strftime_now", "self", "loop", "cycler", "dict", "bos_token", "tojson")


@pytest.mark.parametrize("name", _VARIABLES)
def test_template_variables_change_a_prompt_or_are_refused_and_reach_no_further(server: RunningServer, name: str) -> None:
    for value in (5, "x", "{{ 7 * 7 }}", None, [], {"__class__": "x", "format": "{0.__class__}"}, {"a": [1] * 5000}, "x" * 100_000):
        body = {"messages": HELLO, "chat_template_kwargs": {name: value}, "return_token_strs": True}
        answer = httpx.post(f"{server.url}/tokenize", json=body)
        assert answer.status_code in (200, 400)
        took = answer.elapsed.total_seconds()
        assert took < LONGEST or took < patience(LONGEST)
        assert "49" not in "".join(answer.json().get("token_strs", ()))


def _send(server: RunningServer, attack: Attack) -> bytes:
    """All that the server answers until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        try:
            connection.sendall(attack.data)
            if attack.half_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        try:
            while part := connection.recv(1 << 16):
                received += part
        except ConnectionResetError:
            pass
    return bytes(received)


def _problem(attack: Attack, answer: bytes) -> str | None:
    if not answer:
        return None if attack.may_be_silent else "no answer"
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status not in attack.statuses:
        return f"answered {status}: {rest[:200]!r}"
    if status == 200 or attack.data.startswith(b"HEAD"):
        return None
    error = json.loads(rest[: rest.rindex(b"}") + 1].split(b"HTTP/1.1 ", 1)[0])["error"]
    # /v1/messages answers in Anthropic's shape.
    if set(error) not in ({"message", "type", "param", "code"}, {"message", "type"}, {"message", "type", "details"}) or not isinstance(
        error["message"], str
    ):
        return f"no error object: {rest[:200]!r}"
    if len(error["message"]) > 1500:
        return f"an error of {len(error['message'])} characters"
    return None


@contextmanager
def _a_stream_beside(server: RunningServer) -> Iterator[list[float]]:
    """One stream after another while the block runs; yields what will be the longest gap of each.

    Raises AssertionError unless each has the text that it has alone.
    """
    with httpx.Client(base_url=server.url, timeout=60) as client:
        alone, _ = _stream(client)
        done = threading.Event()
        texts: set[str] = set()
        gaps: list[float] = []

        def go_on() -> None:
            while not done.is_set():
                text, gap = _stream(client)
                texts.add(text)
                gaps.append(gap)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield gaps
        finally:
            done.set()
            thread.join()
    assert texts == {alone}


def _stream(client: httpx.Client) -> tuple[str, float]:
    """The text of a stream, and the longest time between two of its pieces."""
    text, gap, last = "", 0.0, time.monotonic()
    with client.stream("POST", "/v1/completions", json=_STREAM) as response:
        for line in response.iter_lines():
            now = time.monotonic()
            gap, last = max(gap, now - last), now
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    return text, gap

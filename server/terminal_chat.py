"""`octavo chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx

_HELP = "/reset forgets the conversation, /exit or /quit leaves (as does Ctrl-D); Ctrl-C stops an answer."


class TerminalChat:
    """Reads lines, sends the whole conversation each time, prints the answer as it is generated."""

    def __init__(
        self,
        url: str,
        model: str | None,
        system: str | None,
        api_key: str | None,
        temperature: float,
        max_tokens: int,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # No read timeout: a long prompt may take long before its first token.
        if "://" not in url:
            url = f"http://{url}"
        self.client = httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), headers=headers, timeout=httpx.Timeout(10, read=None))
        self.model = model
        self.options = {"temperature": temperature, "max_tokens": max_tokens}
        self.opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def run(self) -> int:
        """Talk until the user leaves; returns the exit status."""
        try:
            self.model = self.model or self._first_model()
        except (httpx.HTTPError, _RefusedError) as error:
            print(f"octavo: no server answers at {self.client.base_url}: {error}; start one with `octavo serve`", file=sys.stderr)
            return 1
        if sys.stdin.isatty():
            _enable_line_editing()
            print(f"{self.model}. {_HELP}")
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return 0
            if line in ("/exit", "/quit"):
                return 0
            if line == "/reset":
                self.messages = list(self.opening)
                print("(forgotten)")
            elif line.startswith("/"):
                print(_HELP)
            elif line:
                self._turn(line)

    def _turn(self, line: str) -> None:
        self.messages.append({"role": "user", "content": line})
        pieces: list[str] = []
        try:
            for piece in self._answer():
                pieces.append(piece)
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            print(" (stopped)", end="")
        except (httpx.HTTPError, _RefusedError) as error:
            print(f"octavo: {error}", file=sys.stderr)
            if not pieces:
                self.messages.pop()
                return
        print()
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _answer(self) -> Iterator[str]:
        try:
            yield from self._stream(self.options)
        except _TooLongError:
            # Near the end of the context: whatever fits is welcome.
            yield from self._stream({name: value for name, value in self.options.items() if name != "max_tokens"})

    def _stream(self, options: dict[str, Any]) -> Iterator[str]:
        body = {"model": self.model, "messages": self.messages, "stream": True, **options}
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
                too_long = "context_length_exceeded" in response.text
                raise (_TooLongError if too_long else _RefusedError)(_message_of(response))
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk: dict[str, Any] = json.loads(line[6:])
                if "error" in chunk:
                    raise _RefusedError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    yield choice["delta"].get("content") or ""

    def _first_model(self) -> str:
        response = self.client.get("/v1/models")
        if response.is_error:
            raise _RefusedError(_message_of(response))
        return str(response.json()["data"][0]["id"])


class _RefusedError(Exception):
    """The server answered with an error."""


class _TooLongError(_RefusedError):
    """The conversation, with the longest answer to it, is longer than the model's context."""


def _message_of(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401
    except ImportError:
        return

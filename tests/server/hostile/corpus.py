"""One hostile request, and how it is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True)
class Attack:
    """The bytes of a request, and what may be answered."""

    name: str
    data: bytes
    statuses: frozenset[int] = frozenset(range(400, 500))
    may_be_silent: bool = False  # what never becomes a whole request can be left without an answer
    half_close: bool = False  # the client says that nothing more comes


def raw(name: str, data: bytes, *statuses: int, **more: Any) -> Attack:
    """A request byte for byte."""
    return Attack(name, data, frozenset(statuses or range(400, 500)), **more)


def post(name: str, path: str, body: bytes | dict[str, Any] | list[Any], *statuses: int, headers: bytes = b"") -> Attack:
    """A request that is valid HTTP, with a body that is JSON unless given as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = b"" if b"content-type:" in headers.lower() else b"Content-Type: application/json\r\n"
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%sContent-Length: %d\r\n\r\n"
    return raw(name, head % (path.encode(), kind, headers, len(data)) + data, *statuses)


def chat(name: str, *statuses: int, **parameters: Any) -> Attack:
    """A chat request that is well but for the parameters given. A None leaves one out."""
    body = {"messages": HELLO, "max_tokens": 1, **parameters}
    return post(name, CHAT, {key: value for key, value in body.items() if value is not None}, *statuses)

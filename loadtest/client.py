"""A client that does next to nothing, so that it takes little of the machine whose server it asks: one request on one connection."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


class ConnectionCutError(Exception):
    """The server closed the connection before the answer was whole."""


@dataclass
class Answer:
    """What came back, as far as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    times: list[float] = field(default_factory=list)  # time.perf_counter() of each piece of the body

    def events(self) -> list[Any]:
        """The JSON objects of a stream."""
        return [json.loads(line[6:]) for line in self.body.split(b"\n") if line.startswith(b"data: {")]

    @property
    def error(self) -> dict[str, Any] | None:
        """OpenAI's error object, whether it is the answer or ends a stream."""
        if self.is_stream:
            return next((event["error"] for event in self.events() if "error" in event), None)
        try:
            error = json.loads(self.body).get("error")
        except (ValueError, AttributeError):
            return None
        return error if isinstance(error, dict) else None

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_whole(self) -> bool:
        """A stream is whole when it says so."""
        return not self.is_stream or self.body.endswith(b"data: [DONE]\n\n")

    def texts(self) -> list[str]:
        """The text of each choice of a chat completion or a completion, streamed or not; of a tool call, its arguments."""
        texts: dict[int, str] = {}
        for part in self.events() if self.is_stream else [json.loads(self.body)]:
            for choice in part.get("choices", ()):
                message = choice if "text" in choice else choice.get("delta") or choice.get("message") or {}
                calls = "".join(call["function"].get("arguments", "") for call in message.get("tool_calls") or ())
                piece = message.get("text") or message.get("content") or calls
                texts[choice["index"]] = texts.get(choice["index"], "") + piece
        return [texts[index] for index in sorted(texts)]


@asynccontextmanager
async def connection(url: str, receive_buffer: int | None = None) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server; with a small `receive_buffer` (bytes) the kernel takes little before it is read."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    plain = socket.socket()
    plain.setblocking(False)
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=receive_buffer or 1 << 16)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(writer: asyncio.StreamWriter, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
    """Send one POST. `body` is bytes, or what is to be JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "server", "Content-Type": "application/json", "Content-Length": str(len(payload)), **(headers or {})}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(head.encode() + b"\r\n" + payload)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> tuple[Answer, AsyncIterator[bytes]]:
    """The answer's head, and an iterator that reads its body into it, piece by piece. Raises ConnectionCutError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ConnectionCutError("no answer") from error
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    answer = Answer(int(status.split()[1]), {name.lower(): value.strip() for name, value in pairs})
    return answer, _pieces(reader, answer)


async def _pieces(reader: asyncio.StreamReader, answer: Answer) -> AsyncIterator[bytes]:
    try:
        if "chunked" not in answer.headers.get("transfer-encoding", ""):
            answer.body = await reader.readexactly(int(answer.headers.get("content-length", 0)))
            yield answer.body
            return
        while size := int(await reader.readuntil(b"\r\n"), 16):
            piece = (await reader.readexactly(size + 2))[:-2]
            answer.times.append(time.perf_counter())
            answer.body += piece
            yield piece
        await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ConnectionCutError(f"cut after {len(answer.body)} bytes of the body") from error


async def ask(url: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    """The whole answer to one POST. Raises ConnectionCutError, or OSError when there is no connection."""
    async with connection(url) as (reader, writer):
        await send(writer, path, body, headers)
        answer, pieces = await receive(reader)
        async for _ in pieces:
            pass
        return answer

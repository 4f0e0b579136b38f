"""What one streamed token costs the API process, by the way its event is framed and sent.

    python -m loadtest.sse_cost

A uvicorn server (uvloop, httptools) in a process of its own sends chat chunks on 32 connections at once to a client that only counts
bytes. The figure is the server process's CPU time over the number of chunks, the pause between chunks included as it would be in life:
every chunk is one event, waited for and sent by itself.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel

STREAMS = 32
CHUNKS = 400
PAUSE = 0.02  # seconds between the chunks of one stream


class _Delta(BaseModel):
    content: str


class _Choice(BaseModel):
    index: int
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None


class _Chunk(BaseModel):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[_Choice]


HEAD: dict[str, Any] = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp_0"}


async def _texts() -> AsyncIterator[str]:
    for _ in range(CHUNKS):
        await asyncio.sleep(PAUSE)
        yield " token"


async def _ours() -> AsyncIterator[bytes]:
    from server.render.chunks import ChunkWriter

    writer = ChunkWriter(HEAD, "content", False, None)
    async for text in _texts():
        yield writer.text(0, text)


async def _pydantic() -> AsyncIterator[str]:
    async for text in _texts():
        yield _Chunk(**HEAD, choices=[_Choice(index=0, delta=_Delta(content=text))]).model_dump_json()


def _responses() -> dict[str, Callable[[], Any]]:
    from sse_starlette import EventSourceResponse
    from starlette.responses import StreamingResponse

    from server.sse import EventStream

    async def unframed(frames: AsyncIterator[bytes]) -> AsyncIterator[str]:
        async for frame in frames:
            yield frame[6:-2].decode()

    return {
        "EventStream, templates": lambda: EventStream(_ours(), 15.0),
        "StreamingResponse, templates": lambda: StreamingResponse(_ours(), media_type="text/event-stream"),
        "sse-starlette, templates": lambda: EventSourceResponse(unframed(_ours())),
        "sse-starlette, pydantic models": lambda: EventSourceResponse(_pydantic()),
        "nothing but the pauses": lambda: EventStream(_silence(), 15.0),
    }


async def _silence() -> AsyncIterator[bytes]:
    async for _ in _texts():
        pass
    yield b""


def _serve(listener: socket.socket, name: str, result: Any) -> None:
    import uvicorn
    import uvloop

    from server.observability.record import new_record

    respond = _responses()[name]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        new_record(scope)
        await respond()(scope, receive, send)

    config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        await asyncio.sleep(0.5)  # start-up is no part of it
        before = _cpu_seconds()
        await asyncio.to_thread(result.recv)
        result.send(_cpu_seconds() - before)
        server.should_exit = True
        await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _read(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    total = 0
    while data := await reader.read(65536):
        total += data.count(b"data: ")
    writer.close()
    return total


async def _measure(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, name, there))
        process.start()
        await asyncio.sleep(1.5)
        started = time.perf_counter()
        events = sum(await asyncio.gather(*(_read(listener.getsockname()[1]) for _ in range(STREAMS))))
        elapsed = time.perf_counter() - started
        here.send(None)
        cpu = await asyncio.to_thread(here.recv)
        process.join()
    chunks = STREAMS * CHUNKS
    print(
        json.dumps({"way": name, "us_per_chunk": round(1e6 * cpu / chunks, 1), "chunks_per_s": round(chunks / elapsed), "events": events})
    )


async def _main() -> None:
    for name in _responses():
        await _measure(name)


if __name__ == "__main__":
    asyncio.run(_main())

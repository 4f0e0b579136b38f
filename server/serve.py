"""Running the server: uvicorn around the app, the engine beside it, signals, and how it all ends."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import setproctitle
import uvicorn

from server.access.keys import KeyRing
from server.app import build_app
from server.batches.runner import BatchRunner
from server.config import ServerConfig
from server.http_protocol import protocol_with
from server.listen import url_of
from server.observability.logs import logger, set_up
from server.observability.tracing import Tracer
from server.response_store import ResponseStore
from server.service import Service
from server.tls import Tls

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine

# Seconds that open connections are given to take what was sent to them, once no request runs.
_LAST_BYTES = 2
# Seconds that the engine process is given to leave by itself.
_ENGINE_PATIENCE = 2.0
# Open files, where the system allows them: each connection is one, and shells start with a limit of 1,024.
_MOST_FILES = 1 << 16


def serve(engine: AsyncLLMEngine, config: ServerConfig, listener: socket.socket) -> int:
    """Serve until a signal ends it; returns the exit status.

    Raises ConfigError, ModelLoadError or EngineDeadError when the engine cannot start.
    """
    setproctitle.setproctitle("octavo: api")
    os.umask(0o077)  # what is kept of requests is for this user alone
    set_up(config)
    _allow_many_connections()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_serve(engine, config, listener))


async def _serve(engine: AsyncLLMEngine, config: ServerConfig, listener: socket.socket) -> int:
    signals = _Signals()
    status = 0
    responses: ResponseStore | None = None
    batches: BatchRunner | None = None
    tracer: Tracer | None = None
    try:
        tls = None if config.ssl_certfile is None else Tls(config)
        service_app = build_app(engine, config)
        service: Service = service_app.state.service
        responses, batches, tracer = service_app.state.responses, service_app.state.batches, service_app.state.tracer
        server = _Uvicorn(
            uvicorn.Config(
                service_app,
                http=protocol_with(config),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(config.forwarded_allow_ips),
                forwarded_allow_ips=config.forwarded_allow_ips,
                timeout_keep_alive=config.timeout_keep_alive,
                timeout_graceful_shutdown=_LAST_BYTES,
                backlog=config.backlog,
                ssl_context_factory=None if tls is None else lambda *_: tls.context,
            )
        )
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        if config.api_keys_file is not None or tls is not None:
            _reload_on_hangup([service_app.state.keys] if tls is None else [service_app.state.keys, tls])
        _warn_if_open(listener, service_app.state.keys)
        try:
            await _start_engine(service, url_of(listener, "http" if tls is None else "https"), signals)
            if batches is not None:
                await batches.start()
            await signals.first()
            service.begin_draining()
            logger.info("stopping: running requests have %g s to finish", config.grace_period)
            status = await _drain(service, signals, config.grace_period)
        finally:
            service.begin_draining()
            server.should_exit = True
            server.force_exit = status != 0
            await serving
    finally:
        if batches is not None:
            await batches.stop()
        await engine.shutdown(patience=_ENGINE_PATIENCE if status == 0 else 0.0)
        if responses is not None:
            responses.close()
        if tracer is not None:
            tracer.shutdown()
    logger.info("stopped")
    return status


def _reload_on_hangup(parts: Sequence[KeyRing | Tls]) -> None:
    def reload() -> None:
        for part in parts:
            part.reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def _allow_many_connections() -> None:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _warn_if_open(listener: socket.socket, keys: KeyRing) -> None:
    host = listener.getsockname()[0]
    if not keys.asks_for_keys and not ipaddress.ip_address(host).is_loopback:
        logger.warning("anyone who reaches %s may use this server: set --api-key or --api-keys-file, or listen on 127.0.0.1", host)


async def _start_engine(service: Service, url: str, signals: _Signals) -> None:
    """Wait until the engine serves, or the first signal. Raises what the engine's start raises."""
    names = ", ".join(service.names)
    logger.info("listening on %s, loading %s", url, names)
    start = asyncio.ensure_future(service.start())
    stop = asyncio.ensure_future(signals.first())
    await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return
    stop.cancel()
    await start
    body = f'{{"model": "{service.names[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    example = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    page = f", with a page for browsers at {url}/" if service.config.web_page else ""
    logger.info("%s is ready on %s%s\n\n  %s\n", names, url, page, example)


async def _drain(service: Service, signals: _Signals, grace_period: float) -> int:
    """Let running requests finish. Returns the exit status: not 0 when a second signal cut them short."""
    drain = asyncio.ensure_future(service.drain(grace_period))
    again = asyncio.ensure_future(signals.second())
    await asyncio.wait((drain, again), return_when=asyncio.FIRST_COMPLETED)
    if drain.done():
        again.cancel()
        return 0
    drain.cancel()
    service.end_running("the server was told again to stop, which it does at once")
    return 128 + await again


class _Signals:
    """SIGINT and SIGTERM: the first asks to stop, the second to stop at once. Made inside the running loop."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._events = (asyncio.Event(), asyncio.Event())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, number)

    async def first(self) -> int:
        await self._events[0].wait()
        return self._received[0]

    async def second(self) -> int:
        await self._events[1].wait()
        return self._received[1]

    def _receive(self, number: int) -> None:
        self._received.append(number)
        if len(self._received) <= len(self._events):
            self._events[len(self._received) - 1].set()


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers of its own: they would close connections before running requests have finished."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()

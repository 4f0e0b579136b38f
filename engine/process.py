"""EngineProcess: the parent's side of one engine process: start it, talk to it, notice its end."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.engine_process import Launch
from engine.errors import DiskFullError
from engine.messages import FromEngine, Shutdown, ToEngine

AnySocket = TypeVar("AnySocket", bound="zmq.Socket[bytes] | zmq.asyncio.Socket")


def socket_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for the sockets of one engine after the other, which only this user may enter.

    Made once: a disk that fills up later does not keep a dead engine from being replaced. Raises DiskFullError.
    """
    try:
        return tempfile.TemporaryDirectory(prefix="octavo-", ignore_cleanup_errors=True)  # mode 0700
    except OSError as error:
        message = f"cannot make a directory for sockets: {error.strerror or error}: free some space, or set TMPDIR to a place that has some"
        raise DiskFullError(message) from error


class EngineProcess:
    """One run of the engine. It begins to load at once."""

    def __init__(self, config: EngineConfig, directory: str) -> None:
        self._directory = directory
        self.killed_because = ""
        launch = Launch(
            config=dataclasses.asdict(config),
            directory=self._directory,
            requests_address=f"ipc://{self._directory}/requests",
            outputs_address=f"ipc://{self._directory}/outputs",
        )
        self._context = zmq.Context()
        self._requests = self._bind(self._context.socket(zmq.PUSH), launch.requests_address)
        self._outputs = self._bind(zmq.asyncio.Socket(self._context, zmq.PULL), launch.outputs_address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        # The parent's import path goes along: -m alone would look for the packages in the working directory.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:0] = {_import_path()!r}; from engine.engine_process import main; main()"],
            stdin=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> bool:
        """Queue a message; False: there is nobody to take it, because the engine has died, or has not come up yet.

        Never blocks: the queue has no bound of its own, as requests are bounded before they come here. Without NOBLOCK, what is sent
        between an engine's death and the moment that it is noticed would wait for another engine on this socket for ever.
        """
        try:
            self._requests.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:  # Again without a peer, or a socket that `stop` has closed
            return False
        return True

    async def messages(self) -> AsyncIterator[FromEngine]:
        """Everything that the engine says, until it has ended and all has been read."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def watch() -> None:
            self._process.wait()
            # The loop may be closed by then.
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=watch, name="engine-watch", daemon=True).start()
        end = asyncio.ensure_future(ended.wait())
        try:
            while True:
                received = asyncio.ensure_future(self._outputs.recv())
                await asyncio.wait((received, end), return_when=asyncio.FIRST_COMPLETED)
                if not received.done():
                    # The last message may be on its way through the socket still.
                    await asyncio.wait((received,), timeout=0.2)
                if not received.done():
                    received.cancel()
                    return
                yield self._decoder.decode(received.result())
        finally:
            end.cancel()

    def kill(self, reason: str) -> None:
        """End the process at once, whatever it does."""
        self.killed_because = reason
        self._process.kill()

    def stop(self, patience: float = 2.0) -> None:
        """End the process, by force if it does not leave by itself within `patience` seconds, and close the sockets."""
        if self._process.poll() is None:
            try:
                self._process.wait(patience if self.send(Shutdown()) else 0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._requests.close(linger=0)
        self._outputs.close(linger=0)
        self._context.term()

    @staticmethod
    def _bind(socket: AnySocket, address: str) -> AnySocket:
        socket.set_hwm(0)  # nothing is ever dropped, and sending never blocks
        socket.bind(address)
        return socket


def _import_path() -> list[str]:
    return [str(Path(__file__).parent.parent)]

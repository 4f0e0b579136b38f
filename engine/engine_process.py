"""The engine's own process: an EngineCore between two sockets.

Started by `EngineProcess` (engine/process.py) with its settings on standard input. That stays open as long as the parent lives: its end
is the sign to leave at once, however the parent died and whatever this process does at that moment.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from typing import Any

import msgspec
import zmq

from engine.config import EngineConfig
from engine.errors import OctavoError, is_disk_full
from engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    EngineFailed,
    EngineReady,
    FromEngine,
    Shutdown,
    StepOutputs,
    ToEngine,
)

logger = logging.getLogger("octavo.engine")


class Launch(msgspec.Struct, frozen=True):
    """What the parent writes to standard input, as one line of JSON."""

    config: dict[str, Any]
    directory: str  # of the sockets; the parent removes it, or this process when the parent cannot any more
    requests_address: str  # ZeroMQ endpoints, bound by the parent
    outputs_address: str


def main() -> None:
    import setproctitle

    setproctitle.setproctitle("octavo: engine")
    # Ctrl-C reaches the whole foreground group; when to stop is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    warnings.showwarning = lambda message, *_: logger.warning("%s", message)
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    threading.Thread(target=_leave_with_parent, args=(launch.directory,), name="parent-watch", daemon=True).start()
    link = _Link(launch)
    try:
        _serve(EngineConfig(**launch.config), link)
    except OctavoError as error:
        link.send(EngineFailed(type(error).__name__, str(error)))
        sys.exit(2)
    except Exception as error:
        logger.exception("the engine failed")
        link.send(EngineFailed("DiskFullError" if is_disk_full(error) else type(error).__name__, f"the engine failed: {error}"))
        sys.exit(1)
    finally:
        link.close()


def _leave_with_parent(directory: str) -> None:
    """Waits for the end of standard input, then ends this process, and removes what its parent cannot any more.

    Nobody would take a result, and a step may take long, or hang: so it is not waited for.
    """
    while os.read(sys.stdin.fileno(), 1):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def _serve(config: EngineConfig, link: _Link) -> None:
    started = time.monotonic()
    # Imported here: PyTorch takes a second, and a failure to import it is reported like any other.
    from engine.core import EngineCore
    from engine.executor.device import resolve_device
    from engine.executor.in_process import InProcessExecutor
    from engine.loader.resolve import resolve_model

    config = resolve_device(config)
    source = resolve_model(config.model, config.revision, config.load_format, config.seed)
    executor = InProcessExecutor(config, source)
    core = EngineCore(config, source.config(), executor)
    info = executor.info
    load_seconds = time.monotonic() - started
    link.send(EngineReady(info.num_blocks, config.block_size, info.kernels, load_seconds, info.num_host_blocks))
    try:
        while link.take_messages(core, wait=not core.has_work):
            if core.has_work:
                link.send(StepOutputs(core.step(), core.stats()))
    finally:
        core.shutdown()


class _Link:
    """The two sockets."""

    def __init__(self, launch: Launch) -> None:
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._outputs = self._context.socket(zmq.PUSH)
        self._outputs.set_hwm(0)  # nothing is ever dropped, and a step never waits for a reader
        self._requests.set_hwm(0)
        self._requests.connect(launch.requests_address)
        self._outputs.connect(launch.outputs_address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        self._outputs.send(self._encoder.encode(message))

    def take_messages(self, core: Any, wait: bool) -> bool:
        """Apply all messages that are there; with `wait`, sleep until there is one. False: it is time to leave."""
        if wait:
            self._requests.poll()
        while True:
            try:
                message = self._decoder.decode(self._requests.recv(zmq.NOBLOCK))
            except zmq.Again:
                return True
            match message:
                case AddRequest(request):
                    core.add_request(request)
                case AbortRequests(request_ids):
                    core.abort_requests(request_ids)
                    self.send(StepOutputs([], core.stats()))
                case Call():
                    self.send(self._call(core, message))
                case Shutdown():
                    return False

    def close(self) -> None:
        self._outputs.close(linger=1000)  # milliseconds in which the last message may still go out
        self._requests.close(linger=0)
        self._context.term()

    @staticmethod
    def _call(core: Any, call: Call) -> CallResult:
        try:
            return CallResult(call.call_id, core.call(call.method))
        except Exception as error:
            return CallResult(call.call_id, error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

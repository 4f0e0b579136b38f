"""A port in front of a server that can be shut: to its clients the server is gone."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def door(port: int, target: str) -> Iterator[None]:
    """A port that leads to the server while the block runs."""
    host, target_port = target.removeprefix("http://").split(":")
    stopping = threading.Event()

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(target_port))) as server:
            while not stopping.is_set():
                for ready in select.select([client, server], [], [], 0.1)[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    (server if ready is client else client).sendall(data)

    def accept() -> None:
        while not stopping.is_set():
            if select.select([listener], [], [], 0.1)[0]:
                threading.Thread(target=carry, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()


def free_port() -> int:
    """One where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])

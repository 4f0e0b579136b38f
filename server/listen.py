"""The listening socket, bound before anything else so that a taken port is told at once."""

from __future__ import annotations

import errno
import socket
import sys

from engine.errors import ConfigError
from server.config import ServerConfig

# Bytes that the kernel keeps of what a client has not taken (it doubles the number). What does not fit stays with the stream, where the
# deltas merge into one; left to itself the kernel would keep 4 MiB for each client.
_SEND_BUFFER = 128 << 10


class PortTakenError(Exception):
    """Another process listens on the port."""


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to the configured address, not yet listening. Raises PortTakenError, or ConfigError for an impossible address."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bound_what_is_unsent(bound, config.send_timeout)
    try:
        bound.bind((config.host, config.port))
        # Two sockets may both bind a port with SO_REUSEADDR as long as neither listens, so the conflict would show only then.
        bound.listen(config.backlog)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {config.port} on {config.host} is taken by another process: stop it, or choose another with --port"
            ) from error
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {error.strerror or error}") from error
    return bound


def _bound_what_is_unsent(listener: socket.socket, send_timeout: float) -> None:
    """How much the kernel keeps for a client that does not take it, and for how long. Accepted connections inherit both."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    if sys.platform == "linux":
        # The kernel sees each byte that is taken, and closes connections where none is (RFC 5482): also those whose client has vanished,
        # and those with an answer that is complete but was never read, which no timer of ours would close.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * send_timeout))


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL under which a client on this machine finds the listener."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

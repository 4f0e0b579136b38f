"""Who sends a request: the name of an API key, and what it may do. Never the key itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The holder of an API key, or anybody where no key is asked for."""

    name: str = ""  # empty: nobody was asked for a key
    is_admin: bool = False  # may call the admin endpoints
    is_shared: bool = False  # one key for all clients: who takes turns is the `user` that requests name
    requests_per_minute: int | None = None  # None: the server's limit; 0: no limit
    tokens_per_minute: int | None = None  # likewise


ANYBODY = Caller(is_shared=True)

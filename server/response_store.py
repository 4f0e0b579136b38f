"""Stored responses: in memory, or in a file that outlives the server. Bounded, the least recently used ones go first.

SQLite does both. Its calls run on one thread, so that no disk holds up a stream.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import ConfigError
from server.errors import ApiError

Result = TypeVar("Result")

_SCHEMA_VERSION = 1
_MAX_BYTES = 256 << 20  # of all stored responses
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    owner TEXT NOT NULL,          -- whose API key it was made with
    id TEXT NOT NULL,
    response BLOB NOT NULL,       -- JSON
    items BLOB NOT NULL,          -- JSON: the conversation before the response's own output
    size INTEGER NOT NULL,        -- bytes of the two
    running INTEGER NOT NULL,     -- 1 while it is made in the background
    used INTEGER NOT NULL,        -- nanoseconds since 1970
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used, size);
"""


@dataclass(frozen=True)
class StoredResponse:
    """A response, and the items that it answered: those of the responses before it, then its own input. Each item has an id."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    num_bytes: int = 0  # of JSON, once it has been stored


class ResponseStore:
    """Responses by owner and id. Nobody finds another owner's. Raises ConfigError when the file cannot be used."""

    def __init__(self, path: str | None, max_responses: int) -> None:
        self._max_responses = max_responses
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="responses")
        try:
            if path is not None:
                Path(path).touch(mode=0o600)  # what people said is nobody else's to read
            # The thread is the only user, and this line runs before it does.
            where = ":memory:" if path is None else path
            self._database = sqlite3.connect(where, check_same_thread=False, isolation_level=None, timeout=0.5)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"response_store {path!r} cannot be used: {error}") from error

    async def save(self, owner: str, stored: StoredResponse, running: bool = False) -> None:
        """Keep a response, in the place of an earlier one of its id."""
        # Encoded here, since the response may change as soon as this waits.
        row = (msgspec.json.encode(stored.response), msgspec.json.encode(stored.items))
        await self._on_thread(lambda: self._save(owner, stored.response["id"], *row, running))

    async def load(self, owner: str, response_id: str) -> StoredResponse | None:
        """A response that this owner stored."""
        return await self._on_thread(lambda: self._load(owner, response_id))

    async def delete(self, owner: str, response_id: str) -> bool:
        """Whether there was such a response."""
        return await self._on_thread(lambda: self._delete(owner, response_id))

    def close(self) -> None:
        """Write what is left to write."""
        self._thread.shutdown(wait=True)
        self._database.close()

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _prepare(self) -> None:
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # two servers would take each other's running responses for lost ones
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"it was written by another version of Octavo ({version}, not {_SCHEMA_VERSION})")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        for owner, response_id, data in database.execute("SELECT owner, id, response FROM responses WHERE running").fetchall():
            response = msgspec.json.decode(data)
            response |= {"status": "failed", "error": {"code": "server_error", "message": "the server was stopped before it was complete"}}
            database.execute(
                "UPDATE responses SET response = ?, running = 0 WHERE owner = ? AND id = ?",
                (msgspec.json.encode(response), owner, response_id),
            )

    def _save(self, owner: str, response_id: str, response: bytes, items: bytes, running: bool) -> None:
        with self._database:
            self._database.execute("BEGIN")
            row = (owner, response_id, response, items, len(response) + len(items), running, time.time_ns())
            self._database.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            while not self._fits():
                self._database.execute("DELETE FROM responses WHERE rowid = (SELECT rowid FROM responses ORDER BY used LIMIT 1)")

    def _fits(self) -> bool:
        count, size = self._database.execute("SELECT COUNT(*), SUM(size) FROM responses").fetchone()
        return bool(count <= self._max_responses and (size <= _MAX_BYTES or count == 1))

    def _load(self, owner: str, response_id: str) -> StoredResponse | None:
        found = self._database.execute(
            "UPDATE responses SET used = ? WHERE owner = ? AND id = ? RETURNING response, items", (time.time_ns(), owner, response_id)
        ).fetchone()
        if found is None:
            return None
        response, items = found
        return StoredResponse(msgspec.json.decode(response), msgspec.json.decode(items), len(response) + len(items))

    def _delete(self, owner: str, response_id: str) -> bool:
        query = "DELETE FROM responses WHERE owner = ? AND id = ? RETURNING id"
        return self._database.execute(query, (owner, response_id)).fetchone() is not None


def no_such_response(response_id: str, param: str | None = None) -> ApiError:
    """The answer to somebody who asks for a response that is not there, or not theirs."""
    message = f"there is no response {response_id[:100]!r} here: it was never stored, or deleted, or made room for newer ones"
    return ApiError(404, message, param=param, code="response_not_found")

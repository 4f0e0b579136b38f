"""Files, batches and results: rows in SQLite, contents in a folder beside it. All of it outlives the server.

A line's result is one row under (batch, line), so it is there once or not at all, however the server ended. Output files are written
from these rows when a batch is over. Calls run on one thread, so that no disk holds up a stream.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from engine.errors import ConfigError, is_disk_full
from server.errors import ApiError

Result = TypeVar("Result")
Kind = Literal["files", "batches"]

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, number INTEGER NOT NULL, object BLOB NOT NULL, size INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, number INTEGER NOT NULL, object BLOB NOT NULL, open INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
    batch_id TEXT NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (batch_id, line)
);
"""


class BatchStore:
    """What `directory` holds. Nobody finds what is another owner's. Raises ConfigError when the directory cannot be used."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._folder = directory / "files"
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = sqlite3.connect(directory / "batches.sqlite", check_same_thread=False, isolation_level=None, timeout=0.5)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"batch_dir {str(directory)!r} cannot be used: {error}") from error

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work` on the store's thread. Raises ApiError 507 when the disk is full."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (OSError, sqlite3.OperationalError) as error:
            if is_disk_full(error) or "full" in str(error):
                raise no_space("the disk of this server's batches is full") from error
            raise

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._database.close()

    # -- files: all below run on the thread --------------------------------------------------------------------------------------------

    def path(self, file_id: str) -> Path:
        """Where a file's content is. Its id is one that `add_file` made, never what a client sent."""
        return self._folder / file_id

    def add_file(self, owner: str, fields: dict[str, Any], content: Iterable[bytes]) -> dict[str, Any]:
        """Keep a file, from its pieces. Returns its object, which gets its id and size here. Raises ApiError 507, with nothing kept."""
        file_id = f"file-{uuid.uuid4().hex}"
        temporary = self._folder / f"{file_id}.part"
        try:
            with temporary.open("xb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            (stored,) = self._database.execute("SELECT COALESCE(SUM(size), 0) FROM files").fetchone()
            if stored + size > self._max_bytes:
                raise no_space(f"all files together may hold {self._max_bytes} bytes, and {stored} are taken: delete some")
            temporary.rename(self.path(file_id))
        finally:
            temporary.unlink(missing_ok=True)
        fields = {"id": file_id, "object": "file", "bytes": size, **fields}
        row = (file_id, owner, self._next_number("files"), msgspec.json.encode(fields), size)
        self._database.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", row)
        return fields

    def delete_file(self, owner: str, file_id: str) -> bool:
        """Whether there was such a file."""
        found = self._database.execute("DELETE FROM files WHERE id = ? AND owner = ? RETURNING id", (file_id, owner)).fetchone()
        if found is not None:
            self.path(file_id).unlink(missing_ok=True)
        return found is not None

    # -- both --------------------------------------------------------------------------------------------------------------------------

    def find(self, kind: Kind, owner: str, item_id: str) -> dict[str, Any] | None:
        """The object of a file or batch that is this owner's."""
        found = self._database.execute(f"SELECT object FROM {kind} WHERE id = ? AND owner = ?", (item_id, owner)).fetchone()
        return None if found is None else self._with_counts(kind, msgspec.json.decode(found[0]))

    def page(
        self, kind: Kind, owner: str, after: str | None, limit: int, ascending: bool, purpose: str | None = None
    ) -> list[dict[str, Any]]:
        """Up to `limit` objects, newest first unless `ascending`, that come after the one with the id `after`."""
        order, beyond = ("ASC", ">") if ascending else ("DESC", "<")
        where, values = "owner = ?", [owner]
        if after is not None:
            where += f" AND number {beyond} (SELECT number FROM {kind} WHERE id = ? AND owner = ?)"
            values += [after, owner]
        if purpose is not None:
            where += " AND json_extract(CAST(object AS TEXT), '$.purpose') = ?"
            values.append(purpose)
        rows = self._database.execute(f"SELECT object FROM {kind} WHERE {where} ORDER BY number {order} LIMIT ?", [*values, limit])
        return [self._with_counts(kind, msgspec.json.decode(data)) for (data,) in rows.fetchall()]

    # -- batches -----------------------------------------------------------------------------------------------------------------------

    def add_batch(self, owner: str, batch: dict[str, Any]) -> None:
        row = (batch["id"], owner, self._next_number("batches"), msgspec.json.encode(batch), True)
        self._database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", row)

    def save_batch(self, batch: dict[str, Any]) -> None:
        """Note how far an open batch has come."""
        self._database.execute("UPDATE batches SET object = ? WHERE id = ? AND open", (msgspec.json.encode(batch), batch["id"]))

    def mark_cancelling(self, owner: str, batch_id: str, now: int) -> dict[str, Any] | None:
        """The batch, to be cancelled; None if there is no open one of this owner's."""
        query = "SELECT object FROM batches WHERE id = ? AND owner = ? AND open"
        found = self._database.execute(query, (batch_id, owner)).fetchone()
        if found is None:
            return None
        batch: dict[str, Any] = msgspec.json.decode(found[0])
        batch |= {"status": "cancelling", "cancelling_at": batch["cancelling_at"] or now}
        self.save_batch(batch)
        return batch

    def is_input(self, file_id: str) -> bool:
        """Whether an open batch reads the file."""
        return any(batch["input_file_id"] == file_id for _, batch in self.open_batches())

    def open_batches(self) -> list[tuple[str, dict[str, Any]]]:
        """Owner and object of each batch that is not over, oldest first."""
        rows = self._database.execute("SELECT owner, object FROM batches WHERE open ORDER BY number").fetchall()
        return [(owner, msgspec.json.decode(data)) for owner, data in rows]

    def add_result(self, batch_id: str, line: int, failed: bool, content: bytes) -> None:
        self._database.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", (batch_id, line, failed, content))

    def lines_done(self, batch_id: str) -> set[int]:
        return {line for (line,) in self._database.execute("SELECT line FROM results WHERE batch_id = ?", (batch_id,))}

    def finish(self, owner: str, batch: dict[str, Any], created_at: int) -> None:
        """Write the output and error files, and close the batch if it is open. What a crash leaves of it is done again."""
        if self._database.execute("SELECT 1 FROM batches WHERE id = ? AND open", (batch["id"],)).fetchone() is None:
            return
        self._count(batch)
        for failed, field in ((False, "output_file_id"), (True, "error_file_id")):
            query = "SELECT content FROM results WHERE batch_id = ? AND failed = ? ORDER BY line"
            rows = self._database.execute(query, (batch["id"], failed))
            if (first := rows.fetchone()) is None:
                continue
            fields = {
                "created_at": created_at,
                "filename": f"{batch['id']}_{'error' if failed else 'output'}.jsonl",
                "purpose": "batch_output",
                "status": "processed",
            }
            batch[field] = self.add_file(owner, fields, (content for (content,) in _chain(first, rows)))["id"]
        with self._database:
            self._database.execute("BEGIN")
            query = "UPDATE batches SET object = ?, open = 0 WHERE id = ?"
            self._database.execute(query, (msgspec.json.encode(batch), batch["id"]))
            self._database.execute("DELETE FROM results WHERE batch_id = ?", (batch["id"],))

    # -- within ------------------------------------------------------------------------------------------------------------------------

    def _with_counts(self, kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
        if kind == "batches" and item["status"] in ("in_progress", "finalizing", "cancelling"):
            self._count(item)
        return item

    def _count(self, batch: dict[str, Any]) -> None:
        query = "SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM results WHERE batch_id = ?"
        done, failed = self._database.execute(query, (batch["id"],)).fetchone()
        batch["request_counts"] |= {"completed": done - failed, "failed": failed}

    def _next_number(self, kind: Kind) -> int:
        (number,) = self._database.execute(f"SELECT COALESCE(MAX(number), 0) + 1 FROM {kind}").fetchone()
        return int(number)

    def _prepare(self) -> None:
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")  # two servers would work off the same batches
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"it was written by another version of Octavo ({version}, not {_SCHEMA_VERSION})")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        known = {file_id for (file_id,) in database.execute("SELECT id FROM files")}
        for path in self._folder.iterdir():  # what a crash left half written
            if path.name not in known:
                path.unlink()
        # Output files of batches whose end did not get as far as the batch's own row.
        for file_id, data in database.execute("SELECT id, object FROM files").fetchall():
            name = msgspec.json.decode(data)["filename"]
            batch_id = name.partition("_output.jsonl")[0].partition("_error.jsonl")[0]
            is_open = database.execute("SELECT 1 FROM batches WHERE id = ? AND open", (batch_id,)).fetchone()
            if msgspec.json.decode(data)["purpose"] == "batch_output" and is_open:
                database.execute("DELETE FROM files WHERE id = ?", (file_id,))
                self.path(file_id).unlink(missing_ok=True)


def _chain(first: Any, rest: Iterable[Any]) -> Iterable[Any]:
    yield first
    yield from rest


def no_space(message: str) -> ApiError:
    """The answer to who would store more than there is room for."""
    return ApiError(507, message, code="insufficient_storage", headers={"x-should-retry": "false"})

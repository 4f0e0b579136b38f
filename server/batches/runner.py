"""Working off batches: lines of all open ones take turns, a few at once, and each result is kept before the next line takes its place."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import asdict
from typing import Any

from starlette.types import ASGIApp

from server.batches.dispatch import Dispatcher, result_line
from server.batches.lines import Line, LineError, read, scan
from server.batches.store import BatchStore
from server.errors import ApiError
from server.observability.logs import logger

_WINDOW = re.compile(r"([1-9]\d{0,4})([smhd])")
_SECONDS_TO_RECOVER = 30
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def window_seconds(text: str) -> int:
    """Seconds of a completion window as in 24h. Raises ValueError for anything else."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("must be a time such as 24h")
    return int(found[1]) * _SECONDS[found[2]]


class BatchRunner:
    """Runs every open batch of the store, from wherever it is, until `stop`."""

    def __init__(self, store: BatchStore, app: ASGIApp, at_once: int) -> None:
        self.store = store
        self._app = app
        self._places = asyncio.Semaphore(at_once)  # waited for in turn, so that no batch keeps the others waiting
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Go on with what an earlier server left."""
        for owner, batch in await self.store.run(self.store.open_batches):
            self.begin(owner, batch)

    def begin(self, owner: str, batch: dict[str, Any]) -> None:
        self._tasks[batch["id"]] = asyncio.create_task(self._run(owner, batch))

    async def cancel(self, owner: str, batch_id: str) -> dict[str, Any] | None:
        """Run no further lines of a batch; what is done so far becomes its output. None if this owner has no such open batch."""
        batch = await self.store.run(lambda: self.store.mark_cancelling(owner, batch_id, int(time.time())))
        if batch is not None:
            if (task := self._tasks.get(batch_id)) is not None:
                task.cancel()
                await asyncio.wait((task,))
            self.begin(owner, dict(batch))
        return batch

    async def stop(self) -> None:
        """Leave every batch as it is, for the next server."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.store.close()

    async def _run(self, owner: str, batch: dict[str, Any]) -> None:
        try:
            while not await self._advance(owner, dict(batch)):  # noqa: ASYNC110  nobody tells when a disk has room again
                await asyncio.sleep(_SECONDS_TO_RECOVER)
        finally:
            if self._tasks.get(batch["id"]) is asyncio.current_task():
                del self._tasks[batch["id"]]

    async def _advance(self, owner: str, batch: dict[str, Any]) -> bool:
        """Bring a batch to its end. False when something hinders that which may pass, as a disk that is full."""
        try:
            if batch["status"] != "cancelling":
                await self._work(owner, batch)
            status = {"cancelling": "cancelled", "in_progress": "completed"}.get(batch["status"], batch["status"])
            now = int(time.time())
            batch |= {"status": status, f"{status}_at": now}
            await self.store.run(lambda: self.store.finish(owner, batch, now))
        except Exception as error:
            cause = _cause(error)
            foreseen = isinstance(cause, ApiError)
            logger.error(
                "%s stopped, and goes on in %d s: %s", batch["id"], _SECONDS_TO_RECOVER, cause, exc_info=None if foreseen else cause
            )
            return False
        logger.info("%s %s: %s", batch["id"], status, batch["request_counts"])
        return True

    async def _work(self, owner: str, batch: dict[str, Any]) -> None:
        """Run all lines that have not been run. The status says how that went."""
        store, path = self.store, self.store.path(batch["input_file_id"])
        try:
            lines, errors = await asyncio.to_thread(scan, path, batch["endpoint"])
        except FileNotFoundError:
            lines, errors = [], [LineError(None, "file_missing", "the input file is not in this server's folder any more")]
        if errors:
            batch |= {"status": "failed", "errors": {"object": "list", "data": [asdict(error) for error in errors]}}
            return
        if batch["status"] == "validating":
            batch |= {"status": "in_progress", "in_progress_at": int(time.time())}
            batch["request_counts"]["total"] = len(lines)
            await store.run(lambda: store.save_batch(batch))
        done = await store.run(lambda: store.lines_done(batch["id"]))
        left = [line for line in lines if line.number not in done]
        try:
            async with asyncio.timeout(max(0.0, batch["expires_at"] - time.time())):
                await self._work_off(owner, batch, left)
        except TimeoutError:
            await self._expire(batch, lines)

    async def _work_off(self, owner: str, batch: dict[str, Any], lines: list[Line]) -> None:
        dispatcher = Dispatcher(self._app, owner)
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    await self._places.acquire()
                    group.create_task(self._run_line(dispatcher, batch, line)).add_done_callback(lambda _: self._places.release())
        finally:
            await dispatcher.aclose()

    async def _run_line(self, dispatcher: Dispatcher, batch: dict[str, Any], line: Line) -> None:
        store = self.store

        def read_line() -> Any:
            with store.path(batch["input_file_id"]).open("rb") as file:
                return read(file, line)

        response = await dispatcher.answer(await store.run(read_line))
        failed = response["status_code"] != 200
        content = result_line(line.custom_id, f"batch_req_{uuid.uuid4().hex}", response)
        await store.run(lambda: store.add_result(batch["id"], line.number, failed, content))

    async def _expire(self, batch: dict[str, Any], lines: list[Line]) -> None:
        store = self.store
        error = {"code": "batch_expired", "message": "This request could not be executed before the completion window expired."}

        def add_errors() -> None:
            done = store.lines_done(batch["id"])
            for line in lines:
                if line.number not in done:
                    content = result_line(line.custom_id, f"batch_req_{uuid.uuid4().hex}", None, error)
                    store.add_result(batch["id"], line.number, True, content)

        await store.run(add_errors)
        batch["status"] = "expired"


def _cause(error: BaseException) -> BaseException:
    """What went wrong with the first of the lines that ran at once."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

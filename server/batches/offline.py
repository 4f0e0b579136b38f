"""`octavo run-batch`: a file of requests becomes a file of answers, with no server. Begun again, it goes on where it was."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.errors import ConfigError
from server.app import build_app
from server.batches.dispatch import Dispatcher, result_line
from server.batches.lines import Line, read, scan
from server.config import ServerConfig
from server.service import Service

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine


class _Result(msgspec.Struct):
    custom_id: str


def plan(source: Path, target: Path) -> tuple[list[Line], int]:
    """The lines that are still to be run, and how many are done. A torn last line of `target` is cut off.

    Raises ConfigError for files that cannot be used.
    """
    try:
        lines, errors = scan(source, None)
        if errors:
            first = errors[0]
            where = str(source) if first.line is None else f"line {first.line} of {source}"
            raise ConfigError(f"{where}: {first.message}" + (f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""))
        done = set(_results(target)) if target.exists() else set()
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename or source}: {error.strerror or error}") from error
    if strange := done - {line.custom_id for line in lines}:
        raise ConfigError(f"{target} holds results of another file, such as of {min(strange)!r}: name a new file")
    return [line for line in lines if line.custom_id not in done], len(done)


async def run_batch(engine: AsyncLLMEngine, config: ServerConfig, source: Path, target: Path) -> int:
    """Run what is left of `source`, each result written to `target` as it comes. Returns how many were refused or failed."""
    lines, num_done = plan(source, target)
    # Nobody else asks, so nothing holds the lines back; and nobody reads a log line for each.
    app = build_app(engine, dataclasses.replace(config, access_log=False, api_key=None, api_keys_file=None))
    service: Service = app.state.service
    dispatcher = Dispatcher(app, "")
    places, num_failed = asyncio.Semaphore(2 * engine.config.seq_budget), 0
    try:
        await service.start()
        with source.open("rb") as requests, target.open("ab") as results, _progress() as progress:
            bar = progress.add_task("requests", total=num_done + len(lines), completed=num_done)

            async def run(line: Line) -> None:
                nonlocal num_failed
                response = await dispatcher.answer(read(requests, line))
                num_failed += response["status_code"] != 200
                results.write(result_line(line.custom_id, f"batch_req_{uuid.uuid4().hex}", response))
                results.flush()
                progress.advance(bar)

            async with asyncio.TaskGroup() as group:
                for line in lines:
                    await places.acquire()
                    group.create_task(run(line)).add_done_callback(lambda _: places.release())
    finally:
        await dispatcher.aclose()
        app.state.responses.close()
        await engine.shutdown()
    return num_failed


def _results(target: Path) -> Iterator[str]:
    """The custom_ids of the results that are there."""
    with target.open("r+b") as file:
        whole = 0  # bytes up to the end of the last whole line
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                break
            try:
                yield msgspec.json.decode(data, type=_Result).custom_id
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise ConfigError(f"line {number} of {target} is no result of a batch: name a new file") from None
            whole += len(data)
        if whole < os.fstat(file.fileno()).st_size:
            file.truncate(whole)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))

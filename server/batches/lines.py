"""The lines of a batch's input: one request each, checked before anything runs, and read again one by one when their turn comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_LINES = 50_000  # OpenAI's limit
MAX_LINE_BYTES = 8 << 20
MAX_CUSTOM_ID = 512  # characters
_MAX_ERRORS = 20  # that are told of one file


@dataclass(frozen=True)
class Line:
    """Where a request stands in its file."""

    number: int  # 1 is the first line
    offset: int  # bytes
    size: int  # bytes
    custom_id: str


@dataclass(frozen=True)
class LineError:
    """Why a file is no batch, in OpenAI's fields."""

    line: int | None
    code: str
    message: str
    param: str | None = None


class BatchLine(msgspec.Struct):
    """One line."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


def scan(path: Path, endpoint: str | None) -> tuple[list[Line], list[LineError]]:
    """The requests of a file, or what is wrong with it. `endpoint` None: lines may name different ones. Raises OSError."""
    lines: list[Line] = []
    errors: list[LineError] = []
    known: set[str] = set()
    with path.open("rb") as file:
        for number, offset, data in _raw_lines(file):
            if len(errors) >= _MAX_ERRORS or len(lines) > MAX_LINES:
                break
            try:
                request = parse(data, endpoint)
            except ValueError as error:
                errors.append(LineError(number, "invalid_line", str(error)))
                continue
            if request.custom_id in known:
                errors.append(LineError(number, "duplicate_custom_id", f"custom_id {request.custom_id!r} was used before", "custom_id"))
            known.add(request.custom_id)
            lines.append(Line(number, offset, len(data), request.custom_id))
    if len(lines) > MAX_LINES:
        errors.append(LineError(None, "too_many_lines", f"a batch may hold at most {MAX_LINES} requests"))
    if not lines and not errors:
        errors.append(LineError(None, "empty_file", "the file holds no requests"))
    return lines, errors


def parse(data: bytes, endpoint: str | None) -> BatchLine:
    """Raises ValueError with what is wrong."""
    if len(data) > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        request = msgspec.json.decode(data, type=BatchLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the line is no request of custom_id, method, url and body: {error}") from None
    if not 1 <= len(request.custom_id) <= MAX_CUSTOM_ID:
        raise ValueError(f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
    if request.method != "POST":
        raise ValueError(f"method must be POST, but is {request.method[:20]!r}")
    if request.url not in ENDPOINTS:
        raise ValueError(f"url must be one of {', '.join(ENDPOINTS)}, but is {request.url[:100]!r}")
    if endpoint is not None and request.url != endpoint:
        raise ValueError(f"url must be {endpoint}, as the batch's endpoint is, but is {request.url}")
    for name in ("stream", "background"):
        if request.body.get(name):
            raise ValueError(f"body.{name} must be left out: the output is a file")
    return request


def read(file: BinaryIO, line: Line) -> BatchLine:
    """The request of a line that `scan` found. Raises ValueError if the file has changed since, and OSError."""
    file.seek(line.offset)
    return parse(file.read(line.size), None)


def _raw_lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(number, offset, content) of each line that is not blank."""
    offset = number = 0
    while data := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        content = data.strip()
        if content:
            yield number, offset + data.index(content[:1]), content
        offset += len(data)

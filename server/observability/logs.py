"""Logging: lines for people, or one JSON object a line, and one line per request."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

from server.config import ServerConfig
from server.observability.record import RequestRecord

logger = logging.getLogger("octavo")

LEVELS = ("debug", "info", "warning", "error")

_LONGEST_PATH = 500  # characters of a request's path that are logged
_PROBES = ("/health", "/ready", "/metrics", "/debug/state")

_COLOURS = {logging.DEBUG: "\x1b[2m", logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}


def set_up(config: ServerConfig) -> None:
    """Send Octavo's log, and what uvicorn has to warn of, to stderr in the configured form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else PrettyFormatter(sys.stderr.isatty()))
    for name, level in (("octavo", config.log_level.upper()), ("uvicorn", "WARNING"), ("asyncio", "WARNING"), ("opentelemetry", "WARNING")):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.setLevel(level)
        target.propagate = False


class JsonFormatter(logging.Formatter):
    """{"time", "level", "message"}, the fields that came with the message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class PrettyFormatter(logging.Formatter):
    """`14:03:07 message  name=value ...`"""

    def __init__(self, colour: bool) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        text = record.getMessage() + "".join(f"  {name}={printable(str(value))}" for name, value in fields.items())
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        if self.colour and (colour := _COLOURS.get(record.levelno)):
            text = f"{colour}{text}\x1b[0m"
        line = time.strftime("%H:%M:%S ", time.localtime(record.created)) + text
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_access(record: RequestRecord, ended: float) -> None:
    """The one line of a request. Rate is output tokens per second after the first one."""
    fields: dict[str, Any] = {"id": record.request_id}
    if record.caller.name:
        fields["key"] = record.caller.name
    if record.prompt_tokens:
        fields["prompt_tokens"] = record.prompt_tokens
        fields["cached_tokens"] = record.cached_tokens
        fields["completion_tokens"] = record.completion_tokens
    if record.first_token is not None:
        fields["ttft_ms"] = round(1000 * (record.first_token - record.started), 1)
        if record.completion_tokens > 1 and ended > record.first_token:
            fields["tokens_per_s"] = round((record.completion_tokens - 1) / (ended - record.first_token), 1)
    if record.finish_reasons:
        fields["finish_reason"] = ",".join(dict.fromkeys(record.finish_reasons))
    if record.error is not None:
        fields["error"] = record.error
    fields["duration_ms"] = round(1000 * (ended - record.started), 1)
    outcome = "client left" if record.client_left else str(record.status)
    # A probe every few seconds would drown what matters, and so would the files of the page.
    is_routine = record.path in _PROBES or record.path.startswith("/web/")
    level = logging.DEBUG if is_routine and record.status in (200, 304, 503) else logging.INFO
    path = printable(record.path[:_LONGEST_PATH])
    logger.log(level, "%s %s %s", record.method, path, outcome, extra={"fields": fields})


def printable(text: str) -> str:
    """The text with line breaks, terminal controls and other characters that do not print as their escapes: one line stays one line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)

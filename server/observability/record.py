"""What is known of one HTTP request: filled in by its route, read by the access log and the metrics when it ends."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from engine.sampling_params import SamplingParams
from server.access.caller import ANYBODY, Caller
from server.access.rate_limits import UNLIMITED, Allowance
from server.dialect import Dialect, dialect_of

SCOPE_KEY = "octavo.record"
BATCH_OWNER = "octavo.batch_owner"  # in the scope of a batch's requests, which no client can write to: whose the batch is
HAS_ARRIVED = "octavo.has_arrived"  # in the scope once all of the request's body has been received
_SANE_ID = re.compile(r"[\w.:/@+=-]{1,128}", re.ASCII)


@dataclass
class RequestRecord:
    """One request, from its first byte to its last. Times are of `time.perf_counter`."""

    request_id: str  # the client's x-request-id if it sent a usable one
    method: str
    path: str
    caller: Caller = ANYBODY
    allowance: Allowance = UNLIMITED
    batch_owner: str | None = None  # of a request that is a line of a batch
    trace_context: dict[str, str] = field(default_factory=dict)  # W3C's headers, by name, as the client sent them
    charged_tokens: int = 0  # to the allowance, until the request has ended and is settled
    started: float = field(default_factory=time.perf_counter)
    submitted: float | None = None  # to the engine: the prompt is ready
    queue_seconds: float | None = None  # from then until the first step that it was in
    first_token: float | None = None
    status: int | None = None  # None until the answer begins
    client_left: bool = False
    body_size: int = 0  # bytes, with those of stored items that the body refers to
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    params: SamplingParams | None = None  # of what it generates
    error: str | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list)  # called once the request has ended, however it did
    # Goes into the ids of the objects in the answer: unique even when clients repeat their own request ids.
    hex: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def dialect(self) -> Dialect:
        """How the client expects to be told of errors."""
        return dialect_of(self.path)

    def end(self) -> None:
        """Give back what was taken for the request."""
        for leave in self.at_end:
            leave()


def new_record(scope: dict[str, Any]) -> RequestRecord:
    """A record for a request that has just arrived, left in its scope."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    record = RequestRecord(given, scope["method"], scope["path"])
    for name, value in scope["headers"]:
        if name in (b"traceparent", b"tracestate"):
            record.trace_context[name.decode()] = value.decode("latin-1")
    if not _SANE_ID.fullmatch(given):
        record.request_id = f"req_{record.hex}"
    scope[SCOPE_KEY] = record
    return record


def record_of(request: HTTPConnection) -> RequestRecord:
    record: RequestRecord = request.scope[SCOPE_KEY]
    return record

"""The body of POST /v1/batches."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from server.batches.runner import window_seconds
from server.protocol.body import RequestBody


def _window(value: str) -> str:
    window_seconds(value)
    return value


_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class BatchRequest(RequestBody):
    input_file_id: Annotated[str, Field(min_length=1, max_length=100)]
    endpoint: str
    completion_window: Annotated[str, AfterValidator(_window)]
    metadata: Annotated[dict[_Key, _Value], Field(max_length=16)] | None = None

"""The frames of a stream, for chat and completions alike.

A token's frame is put together from bytes that are the same throughout the stream, so that it costs a few microseconds; only chunks
with log probabilities, token ids or a running usage are encoded from objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from server.sse import event

encode = msgspec.json.encode


class ChunkWriter:
    """Writes the chunks of one stream: same id, object, created and model in each."""

    def __init__(self, head: dict[str, Any], text_field: str, include_usage: bool, running_usage: Callable[[], Any] | None) -> None:
        """`text_field`: content (in a delta) for chat, text for completions. `running_usage`: what `usage` is in every chunk, if wanted."""
        self._in_delta = text_field == "content"
        self._open = encode(head)[:-1] + b',"choices":['
        self._close = b'],"usage":null}' if include_usage else b"]}"
        self._running_usage = running_usage
        before = '"delta":{"content":' if self._in_delta else '"text":'
        after = b"}" if self._in_delta else b""
        self._before_text = (b"data: " + self._open + b'{"index":', ("," + before).encode())
        self._after_text = after + b',"logprobs":null,"finish_reason":null}' + self._close + b"\n\n"

    def text(self, index: int, text: str) -> bytes:
        """The frame of some text and nothing else."""
        if self._running_usage is not None:
            return self.rich_text(index, text, None, {})
        start, before = self._before_text
        return start + b"%d" % index + before + encode(text) + self._after_text

    def rich_text(self, index: int, text: str, logprobs: Any, extras: dict[str, Any]) -> bytes:
        """The frame of text with what else belongs to its tokens."""
        if self._in_delta:
            return self.delta(index, {"content": text}, logprobs, extras)
        return self._choice({"index": index, "text": text, "logprobs": logprobs, "finish_reason": None, **extras}, {})

    def delta(self, index: int, fields: dict[str, Any], logprobs: Any, extras: dict[str, Any]) -> bytes:
        """Chat: the frame of a delta with these fields."""
        return self._choice({"index": index, "delta": fields, "logprobs": logprobs, "finish_reason": None, **extras}, {})

    def role(self, index: int, top_level: dict[str, Any]) -> bytes:
        """Chat: the frame that opens a choice. `top_level` stands beside the choices."""
        delta = {"role": "assistant", "content": ""}
        return self._choice({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, top_level)

    def final(self, index: int, finish_reason: str, stop_reason: str | int | None) -> bytes:
        """The frame that closes a choice."""
        body: dict[str, Any] = {"delta": {}} if self._in_delta else {"text": ""}
        choice = {"index": index, **body, "logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason}
        return self._choice(choice, {})

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The frame without choices that ends a stream for those who asked for the usage."""
        return event(self._open + b'],"usage":' + encode(usage) + b"}")

    def _choice(self, choice: dict[str, Any], top_level: dict[str, Any]) -> bytes:
        close = self._close if self._running_usage is None else b'],"usage":' + encode(self._running_usage()) + b"}"
        if top_level:
            close = close[:-1] + b"," + encode(top_level)[1:]
        return event(self._open + encode(choice) + close)

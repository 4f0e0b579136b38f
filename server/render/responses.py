"""A response and its events, from the deltas of a chat message.

The object that a client waits for and the one that its stream ends with are the same, since both are what the events add up to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from engine.chat.deltas import Content, Delta, Reasoning, ToolArguments, ToolCallStart
from server.errors import ApiError

Emit = Callable[[dict[str, Any]], None]
Status = Literal["completed", "incomplete"]

# Codes that OpenAI's `error` of a response knows; clients parse no others.
_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponseBuilder:
    """Fills in a response object, and tells `emit` of each event. Items are opened and closed one after the other."""

    def __init__(self, response: dict[str, Any], emit: Emit, namespaces: Mapping[str, tuple[str, str]]) -> None:
        """`namespaces`: namespace and name of functions that are in one, by the names under which the model knows them."""
        self.response = response
        self._namespaces = namespaces
        self._emit_event = emit
        self._sequence_number = 0
        self._hex = response["id"].removeprefix("resp_")
        self._pieces: list[str] = []  # of the open item's text or arguments
        self._waiting_logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come yet

    def open(self) -> None:
        """The response begins."""
        self._emit("response.created", response=self.response)
        if self.response["status"] == "queued":
            self._emit("response.queued", response=self.response)
            self.response["status"] = "in_progress"
        self._emit("response.in_progress", response=self.response)

    def take(self, deltas: Sequence[Delta], logprobs: Sequence[dict[str, Any]]) -> None:
        """What is new in the message. `logprobs` are those of the tokens behind it, if they are wanted."""
        self._waiting_logprobs += logprobs
        for delta in deltas:
            match delta:
                case Content(text):
                    self._take_content(text)
                case Reasoning(text):
                    self._take_reasoning(text)
                case ToolCallStart(_, call_id, name):
                    self._open_call(call_id, name)
                case ToolArguments(_, text):
                    self._pieces.append(text)
                    self._emit("response.function_call_arguments.delta", **self._place(), delta=text)

    def end(self, status: Status, usage: dict[str, Any]) -> None:
        """The message is whole, or as long as it was allowed to become. The response's last event waits for `conclude`."""
        if not self._output:
            self._open_message()
        self._close_item(status)
        self.response["usage"] = usage
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = int(time.time())
        self.response["status"] = status

    def fail(self, error: ApiError) -> None:
        """The response ends with an error. What there is of it is kept."""
        self._close_item("incomplete")
        code = _ERROR_CODES.get(error.status, "server_error")
        self.response |= {"status": "failed", "error": {"code": code, "message": error.message}}

    def cancel(self) -> None:
        """The response ends because somebody asked for that. What there is of it is kept."""
        self._close_item("incomplete")
        self.response["status"] = "cancelled"

    def conclude(self) -> None:
        """The response's last event, once it is stored."""
        self._emit(f"response.{self.response['status']}", response=self.response)

    @property
    def _output(self) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = self.response["output"]
        return output

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_event({"type": kind, "sequence_number": self._sequence_number, **fields})
        self._sequence_number += 1

    def _is_open(self, kind: str) -> bool:
        return bool(self._output) and self._output[-1]["type"] == kind and self._output[-1]["status"] == "in_progress"

    def _place(self) -> dict[str, Any]:
        """Where the open item stands."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _open_item(self, prefix: str, item: dict[str, Any]) -> None:
        self._close_item("completed")
        item = {"id": f"{prefix}_{self._hex}{len(self._output):04d}", **item, "status": "in_progress"}
        self._output.append(item)
        self._pieces = []
        self._emit("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _open_message(self) -> None:
        self._open_item("msg", {"type": "message", "role": "assistant", "content": []})
        self._open_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _open_call(self, call_id: str, name: str) -> None:
        self._waiting_logprobs = []
        space, name = self._namespaces.get(name, (None, name))
        item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
        self._open_item("fc", item if space is None else {**item, "namespace": space})

    def _open_part(self, part: dict[str, Any]) -> None:
        self._output[-1]["content"].append(part)
        self._emit("response.content_part.added", **self._place(), content_index=0, part=part)

    def _take_content(self, text: str) -> None:
        if not self._is_open("message"):
            self._open_message()
        logprobs, self._waiting_logprobs = self._waiting_logprobs, []
        self._pieces.append(text)
        self._output[-1]["content"][0]["logprobs"] += logprobs
        self._emit("response.output_text.delta", **self._place(), content_index=0, delta=text, logprobs=logprobs)

    def _take_reasoning(self, text: str) -> None:
        self._waiting_logprobs = []
        if not self._is_open("reasoning"):
            self._open_item("rs", {"type": "reasoning", "summary": [], "content": []})
            self._open_part({"type": "reasoning_text", "text": ""})
        self._pieces.append(text)
        self._emit("response.reasoning_text.delta", **self._place(), content_index=0, delta=text)

    def _close_item(self, status: Status) -> None:
        if not self._output or self._output[-1]["status"] != "in_progress":
            return
        item = self._output[-1]
        text = "".join(self._pieces)
        match item["type"]:
            case "message":
                self._close_message(item["content"][0], text)
            case "reasoning":
                item["content"][0]["text"] = text
                self._emit("response.reasoning_text.done", **self._place(), content_index=0, text=text)
                self._emit("response.content_part.done", **self._place(), content_index=0, part=item["content"][0])
            case "function_call":
                item["arguments"] = text
                self._emit("response.function_call_arguments.done", **self._place(), name=item["name"], arguments=text)
        item["status"] = status
        self._emit("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _close_message(self, part: dict[str, Any], text: str) -> None:
        if self._waiting_logprobs:  # of tokens without text, such as the one that ended the answer
            self._take_content("")
        part["text"] = text
        self._emit("response.output_text.done", **self._place(), content_index=0, text=text, logprobs=part["logprobs"])
        self._emit("response.content_part.done", **self._place(), content_index=0, part=part)

"""A response's request as a chat completion's: items become messages, and parameters get chat's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from server.protocol.response_items import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    Parts,
    ReasoningItem,
    RefusalPart,
)
from server.protocol.responses import (
    AllowedFunctions,
    FunctionChoice,
    FunctionTool,
    NamespaceTool,
    ResponseInput,
    ResponsesRequest,
    TextFormat,
    flat_name,
)

# Chat's names of parameters to those of responses.
NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "include",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
}
INNER_NAMES = {"function": "", "json_schema": "", "allowed_tools": "", "tool_call_id": "call_id"}


@dataclass
class Messages:
    """Chat messages, and for each where in the request it came from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    def add(self, message: dict[str, Any], origin: str) -> None:
        self.messages.append(message)
        self.origins.append(origin)


def messages_of(body: ResponseInput, earlier: Sequence[Item], new: Sequence[Item]) -> Messages:
    """The messages of a request: its instructions, the items of the response that it continues, and its own."""
    found = Messages()
    if isinstance(body.instructions, str):
        found.add({"role": "system", "content": [_text(body.instructions)]}, "instructions")
    elif body.instructions is not None:
        _add_items(found, body.instructions, [f"instructions.{index}" for index in range(len(body.instructions))])
    own = ["input" if isinstance(body.input, str) else f"input.{index}" for index in range(len(new))]
    _add_items(found, [*earlier, *new], ["previous_response_id"] * len(earlier) + own)
    _join_opening(found)
    return found


def chat_fields(body: ResponseInput, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters of the chat completion that answers a request, or that is only counted."""
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "reasoning_effort": body.reasoning.effort,
        "verbosity": body.text.verbosity,
        "response_format": _response_format(body.text.format),
    }
    if body.tools:
        fields |= {
            "tools": _chat_tools(body.tools),
            "tool_choice": _tool_choice(body.tool_choice),
            "parallel_tool_calls": body.parallel_tool_calls,
        }
    elif body.tool_choice != "auto":
        fields["tool_choice"] = _tool_choice(body.tool_choice)
    if isinstance(body, ResponsesRequest):
        fields |= _sampling_fields(body)
    return {name: value for name, value in fields.items() if value is not None}


def _sampling_fields(body: ResponsesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **body.passed_on(),
        "max_tokens": body.max_output_tokens,
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "stop": body.stop,
        "thinking_token_budget": body.thinking_token_budget,
    }
    if body.wants_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return fields


def _add_items(found: Messages, items: Sequence[Item], origins: Sequence[str]) -> None:
    """Reasoning, text and calls that follow each other are one message of the assistant, as chat has it."""
    assistant: dict[str, Any] | None = None
    for item, origin in zip(items, origins, strict=True):
        if isinstance(item, FunctionOutputItem):
            assistant = None
            found.add({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)}, origin)
        elif isinstance(item, MessageItem) and item.role != "assistant":
            assistant = None
            found.add({"role": item.role, "content": _content(item.content)}, origin)
        else:
            if assistant is None or _begins_anew(assistant, item):
                assistant = {"role": "assistant", "content": None}
                found.add(assistant, origin)
            _add_to_assistant(assistant, item)
    for message in found.messages:
        if isinstance(thoughts := message.get("reasoning_content"), list):
            message["reasoning_content"] = "".join(thoughts)


def _begins_anew(assistant: dict[str, Any], item: Item) -> bool:
    if isinstance(item, FunctionCallItem):
        return False
    return "tool_calls" in assistant or assistant["content"] is not None


def _add_to_assistant(assistant: dict[str, Any], item: Item) -> None:
    match item:
        case MessageItem():
            assistant["content"] = _content(item.content)
        case FunctionCallItem():
            call = {
                "id": item.call_id,
                "type": "function",
                "function": {"name": flat_name(item.namespace, item.name), "arguments": item.arguments},
            }
            assistant.setdefault("tool_calls", []).append(call)
        case ReasoningItem():
            assistant.setdefault("reasoning_content", []).extend(part.text for part in item.content or item.summary)


def _join_opening(found: Messages) -> None:
    """Make one message of all system messages at the start: many templates take no second one."""
    opening = list(takewhile(lambda message: message["role"] in ("system", "developer"), found.messages))
    if len(opening) > 1:
        parts = [part for message in opening for part in _as_parts(message["content"])]
        found.messages[: len(opening)] = [{**opening[0], "content": parts}]
        del found.origins[1 : len(opening)]


def _content(content: Parts) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [_text(part.refusal if isinstance(part, RefusalPart) else part.text) for part in content]


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _response_format(format: TextFormat | None) -> dict[str, Any] | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {"type": "json_object"}
    schema = format.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return {"type": "json_schema", "json_schema": schema}


def _chat_tools(tools: Sequence[FunctionTool | NamespaceTool]) -> list[dict[str, Any]]:
    """Functions of a namespace are like others, but for their names."""
    flat: list[tuple[str | None, FunctionTool]] = []
    for tool in tools:
        flat += [(tool.name, one) for one in tool.tools] if isinstance(tool, NamespaceTool) else [(None, tool)]
    return [
        _chat_tool({**one.model_dump(exclude_none=True, exclude={"type", "defer_loading"}), "name": flat_name(space, one.name)})
        for space, one in flat
    ]


def _chat_tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _tool_choice(choice: str | FunctionChoice | AllowedFunctions) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, FunctionChoice):
        return _chat_tool({"name": choice.name})
    tools = [_chat_tool({"name": tool.name}) for tool in choice.tools]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}

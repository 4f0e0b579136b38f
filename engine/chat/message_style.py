"""How a chat template wants tools, and messages that call them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.tool_calls.fallback import as_user_message, with_tools_described
from engine.tool_calls.tools import ToolUse

Messages: TypeAlias = list[dict[str, Any]]
CallText: TypeAlias = Callable[[list[tuple[str, str]]], str]  # names and arguments of a message's calls, as the model writes them

# Templates that show arguments as an object do one of these to them; others join them to text.
_READS_OBJECT = re.compile(r"arguments['\"]?\]?\s*(\|\s*(tojson|items|dictsort)|\.items\(\)|is\s+(mapping|string|not\s+string))")
_ONE_CALL = re.compile(r"tool_calls\s*\|\s*length\s*==\s*1")
_SHORT_IDS = re.compile(r"id\s*\|\s*length\s*!=\s*9")
_TOOLS_IN_SYSTEM = re.compile(r"message(\.tools\b|\[['\"]tools['\"]\])")


@dataclass(frozen=True)
class MessageStyle:
    """Read from a template's source."""

    knows_tools: bool  # it shows tools; if not, they are described in the system message
    knows_calls: bool  # it shows an assistant's calls; if not, they are put into its content
    knows_results: bool  # it knows the role of a tool's answer; if not, that is a user's message
    knows_one_call: bool  # it refuses messages with several calls, as Llama's do
    tools_in_system: bool  # it looks for tools in the system message, as Phi-4-mini's does
    arguments_as_text: bool  # it prints arguments as they are, so that an object would not do
    short_ids: bool  # it refuses calls whose ids have not nine letters and digits, as Mistral's do

    @classmethod
    def of(cls, template: str) -> MessageStyle:
        words = frozenset(re.findall(r"\w+", template))
        knows_calls = "tool_calls" in words
        return cls(
            knows_tools="tools" in words,
            knows_calls=knows_calls,
            knows_results=knows_calls or "tools" in words,
            knows_one_call=_ONE_CALL.search(template) is not None,
            tools_in_system=_TOOLS_IN_SYSTEM.search(template) is not None,
            arguments_as_text="arguments" in words and _READS_OBJECT.search(template) is None,
            short_ids=_SHORT_IDS.search(template) is not None,
        )

    def prepared(self, messages: Messages, use: ToolUse | None, call_text: CallText) -> tuple[Messages, list[dict[str, Any]] | None]:
        """The messages, and what the template is given as `tools`."""
        messages = [self._message(message, call_text) for message in messages]
        if use is None:
            return messages, None
        if not self.knows_tools:
            return with_tools_described(messages, use, call_text([("<function-name>", "<arguments>")])), None
        shown = [tool.shown() for tool in use.tools]
        if self.tools_in_system:
            has_system = bool(messages) and messages[0].get("role") == "system"
            head = messages[0] if has_system else {"role": "system", "content": ""}
            listed = json.dumps([tool["function"] for tool in shown], ensure_ascii=False)
            messages = [{**head, "tools": listed}, *(messages[1:] if has_system else messages)]
        return messages, shown

    def _message(self, message: dict[str, Any], call_text: CallText) -> dict[str, Any]:
        if message.get("role") == "tool":
            if not self.knows_results:
                return as_user_message(message)
            if self.short_ids and "tool_call_id" in message:
                return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
            return message
        if not message.get("tool_calls"):
            return {name: value for name, value in message.items() if name != "tool_calls"} if "tool_calls" in message else message
        message = _with_arguments(message, self.arguments_as_text or not self.knows_calls)
        if not self.knows_calls:
            return _with_calls_in_content(message, call_text)
        if self.short_ids:
            message = {**message, "tool_calls": [{**call, "id": _short_id(call.get("id") or "")} for call in message["tool_calls"]]}
        # Some templates join it to what follows, or look into it, without asking whether it is there.
        return {**message, "content": message.get("content") or ""}


def _short_id(id: str) -> str:
    """An id of nine letters and digits for an id of another server; the same for the same."""
    return id if re.fullmatch(r"[0-9A-Za-z]{9}", id) else hashlib.sha256(id.encode()).hexdigest()[:9]


def _with_arguments(message: dict[str, Any], as_text: bool) -> dict[str, Any]:
    """The message with the arguments of its calls as text or as objects."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    convert = _as_text if as_text else _as_object
    functions = [{**call["function"], "arguments": convert(call["function"].get("arguments", {}))} for call in calls]
    return {**message, "tool_calls": [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]}


def _with_calls_in_content(message: dict[str, Any], call_text: CallText) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = call_text([(call["function"]["name"], call["function"]["arguments"]) for call in calls])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _as_object(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # what a model wrote is not always JSON, and is shown to it as it was
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

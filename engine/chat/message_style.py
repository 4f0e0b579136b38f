"""How a chat template wants tools, and messages that call them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.tool_calls.fallback import with_tools_in_text
from engine.tool_calls.tools import ToolUse

Messages: TypeAlias = list[dict[str, Any]]
CallText: TypeAlias = Callable[[list[tuple[str, str]]], str]  # names and arguments of a message's calls, as the model writes them

# Templates that show arguments as an object do one of these to them; others join them to text.
_READS_OBJECT = re.compile(r"arguments['\"]?\]?\s*(\|\s*(tojson|items|dictsort)|\.items\(\)|is\s+(mapping|string|not\s+string))")
_TOOLS_IN_SYSTEM = re.compile(r"message(\.tools\b|\[['\"]tools['\"]\])")


@dataclass(frozen=True)
class MessageStyle:
    """Read from a template's source."""

    knows_tools: bool  # it shows tools; if not, they are described in the system message
    knows_calls: bool  # it shows an assistant's calls; if not, they are put into its content
    tools_in_system: bool  # it looks for tools in the system message, as Phi-4-mini's does
    arguments_as_text: bool  # it prints arguments as they are, so that an object would not do

    @classmethod
    def of(cls, template: str) -> MessageStyle:
        words = frozenset(re.findall(r"\w+", template))
        return cls(
            knows_tools="tools" in words,
            knows_calls="tool_calls" in words,
            tools_in_system=_TOOLS_IN_SYSTEM.search(template) is not None,
            arguments_as_text="arguments" in words and _READS_OBJECT.search(template) is None,
        )

    def prepared(self, messages: Messages, use: ToolUse | None, call_text: CallText) -> tuple[Messages, list[dict[str, Any]] | None]:
        """The messages, and what the template is given as `tools`."""
        if not self.knows_tools:
            return with_tools_in_text([_with_arguments(message, as_text=True) for message in messages], use), None
        if self.knows_calls:
            messages = [_with_arguments(message, self.arguments_as_text) for message in messages]
        else:
            messages = [_with_calls_in_content(_with_arguments(message, as_text=True), call_text) for message in messages]
        if use is None:
            return messages, None
        shown = [tool.shown() for tool in use.tools]
        if self.tools_in_system:
            head = messages[0] if messages and messages[0].get("role") == "system" else {"role": "system", "content": ""}
            listed = json.dumps([tool["function"] for tool in shown], ensure_ascii=False)
            messages = [{**head, "tools": listed}, *(messages[1:] if messages and head is messages[0] else messages)]
        return messages, shown


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
    return {**rest, "content": f"{message.get('content') or ''}{text}"}


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

"""Tools for models whose template knows none: they are described in the system message, and calls and results stand in plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence as SequenceOf
from typing import Any

from engine.tool_calls.hermes import HermesParser
from engine.tool_calls.tools import Tool, ToolUse

# The words are those of Hermes and Qwen, which other models have met too.
_INTRODUCTION = """You may call functions to help with the user's query. They are described within <tools></tools> tags:
<tools>
{tools}
</tools>

For each call, write a JSON object with the function's name and arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-json-object>}}
</tool_call>
Its result then comes within <tool_response></tool_response> tags. Where no function helps, answer in words."""
_REQUIRED = "Now you must call a function."


def with_tools_in_text(messages: list[dict[str, Any]], use: ToolUse | None) -> list[dict[str, Any]]:
    """The conversation for a template that shows nothing but roles and text."""
    plain = [_plain(message) for message in messages]
    if use is None:
        return plain
    text = _describe(use)
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0].get('content') or ''}\n\n{text}".strip()}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _describe(use: ToolUse) -> str:
    text = _INTRODUCTION.format(tools="\n".join(map(_line, use.tools)))
    return f"{text}\n\n{_REQUIRED}" if use.required else text


def _line(tool: Tool) -> str:
    return json.dumps(tool.shown()["function"], ensure_ascii=False)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls: SequenceOf[dict[str, Any]] = message.get("tool_calls") or ()
    if not calls:
        return message
    written = HermesParser.call_text([(call["function"]["name"], call["function"]["arguments"]) for call in calls])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{written}" if content else written}

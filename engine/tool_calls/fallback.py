"""Tools for models whose template shows none: the system message describes them."""

from __future__ import annotations

import json
from typing import Any

from engine.tool_calls.tools import Tool, ToolUse

# The words are those of Hermes and Qwen, which other models have met too.
_INTRODUCTION = """You may call functions to help with the user's query. They are described within <tools></tools> tags:
<tools>
{tools}
</tools>

To call functions, answer in this form, with their names and JSON objects of their arguments:
{example}

Their results come back in the next message. Where no function helps, answer in words."""
_REQUIRED = "Now you must call a function."


def with_tools_described(messages: list[dict[str, Any]], use: ToolUse, example: str) -> list[dict[str, Any]]:
    """The conversation with a system message that says which functions there are, and how a call of one looks."""
    text = _INTRODUCTION.format(tools="\n".join(map(_line, use.tools)), example=example)
    if use.required:
        text = f"{text}\n\n{_REQUIRED}"
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}".strip()}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def as_user_message(message: dict[str, Any]) -> dict[str, Any]:
    """A tool's answer, for templates that know no such role."""
    return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}


def _line(tool: Tool) -> str:
    return json.dumps(tool.shown()["function"], ensure_ascii=False)

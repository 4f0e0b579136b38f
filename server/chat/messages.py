"""Messages as the API has them, made into what chat templates expect."""

from __future__ import annotations

import json
from typing import Any

from engine.errors import InvalidRequestError
from server.errors import unsupported
from server.protocol.chat import Message

# Part types that are text, and the field that holds it.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def template_messages(messages: list[Message], knows_developer: bool) -> list[dict[str, Any]]:
    """Plain dictionaries, text parts joined by line breaks, fields that are null left out.

    Most templates know no `developer` role, which OpenAI's newer clients send for `system`. Arguments of tool calls become objects,
    which is what templates of tool-calling models iterate over. Raises ApiError for parts that are not text.
    """
    return [_plain(message, index, knows_developer) for index, message in enumerate(messages)]


def _plain(message: Message, index: int, knows_developer: bool) -> dict[str, Any]:
    plain = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        plain["content"] = "\n".join(
            _part_text(part.type, part.model_dump(), f"messages.{index}.content.{place}") for place, part in enumerate(message.content)
        )
    if message.role == "developer" and not knows_developer:
        plain["role"] = "system"
    if message.role == "tool" and message.tool_call_id is None and message.name is None:
        raise InvalidRequestError(
            "a message of the role tool needs the tool_call_id that it answers", param=f"messages.{index}.tool_call_id"
        )
    for call in plain.get("tool_calls", ()):
        call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    return plain


def _part_text(kind: str, part: dict[str, Any], where: str) -> str:
    if kind not in _TEXT_PARTS:
        raise unsupported(where, f"{where} is of the type {kind[:50]!r}, but the model reads text alone")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.{_TEXT_PARTS[kind]} must be a string", param=f"{where}.{_TEXT_PARTS[kind]}")
    return text


def _arguments(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # what a model wrote is not always JSON, and is shown to it as it was
    return parsed if isinstance(parsed, dict) else arguments

"""Messages as the API has them, made into what chat templates expect."""

from __future__ import annotations

from typing import Any

from engine.chat_template import ChatTemplate
from engine.errors import InvalidRequestError
from server.errors import ApiError, unsupported
from server.observability.logs import logger
from server.protocol.chat import ContentPart, Message

# Part types that are text, and the field that holds it.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


# The two names of the same. It changes no answer when the template does not show it, which is what its senders expect.
_REASONING_FIELDS = frozenset({"reasoning_content", "reasoning"})
# Hints to a prefix cache, which needs none.
_OPTIONAL_PART_FIELDS = frozenset({"cache_control", "prompt_cache_breakpoint"})


class MessageReader:
    """Makes plain dictionaries of messages, for one template: text parts joined by line breaks, fields that are null left out.

    Most templates know no `developer` role, which OpenAI's newer clients send for `system`. A tool's answer must answer a call, and is
    given the function's name. Fields that neither OpenAI's API nor the template knows are refused unless `allow_unknown`, or unless they
    are empty.
    """

    def __init__(self, template: ChatTemplate, allow_unknown: bool) -> None:
        self._template = template
        self._allow_unknown = allow_unknown

    def read(self, messages: list[Message]) -> list[dict[str, Any]]:
        """Raises ApiError for parts that are not text and for unknown fields, InvalidRequestError for a tool's answer to nothing."""
        called: dict[str, str] = {}  # the names of the functions that have been called, by the calls' ids
        plain = []
        for index, message in enumerate(messages):
            where = f"messages.{index}"
            read = self._plain(message, where)
            if message.role == "tool":
                _match(read, called, where)
            called |= {call.id: call.function.name for call in message.tool_calls or () if call.id is not None}
            plain.append(read)
        return plain

    def _plain(self, message: Message, where: str) -> dict[str, Any]:
        plain = message.model_dump(exclude_none=True)
        for name, value in (message.model_extra or {}).items():
            if not self._template.mentions(name):
                self._check_unknown(f"{where}.{name}", value, name in _REASONING_FIELDS)
                plain.pop(name, None)
                if name in _REASONING_FIELDS and isinstance(value, str):
                    plain |= {other: value for other in _REASONING_FIELDS if self._template.mentions(other) and not plain.get(other)}
        if isinstance(message.content, list):
            texts = [self._part_text(part, f"{where}.content.{place}") for place, part in enumerate(message.content)]
            plain["content"] = "\n".join(texts)
        if message.role == "developer" and not self._template.knows_developer:
            plain["role"] = "system"
        return plain

    def _part_text(self, part: ContentPart, where: str) -> str:
        if part.type not in _TEXT_PARTS:
            raise unsupported(where, f"{where} is of the type {part.type[:50]!r}, but the model reads text alone")
        text_field = _TEXT_PARTS[part.type]
        fields = part.model_extra or {}
        for name, value in fields.items():
            if name != text_field:
                self._check_unknown(f"{where}.{name}", value, name in _OPTIONAL_PART_FIELDS)
        text = fields.get(text_field)
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}.{text_field} must be a string", param=f"{where}.{text_field}")
        return text

    def _check_unknown(self, where: str, value: Any, optional: bool) -> None:
        if optional or value is None or value in ("", [], {}):
            return
        where = where[:200]
        if not self._allow_unknown:
            raise ApiError(
                400, f"unknown field: {where} is read neither by the API nor by the chat template", param=where, code="unknown_parameter"
            )
        logger.warning("an unknown field was ignored: %r", where)


def _match(message: dict[str, Any], called: dict[str, str], where: str) -> None:
    """Give a tool's answer the name of the function, which some templates show. Raises InvalidRequestError when nothing was asked."""
    call_id = message.get("tool_call_id")
    if call_id is None and "name" not in message:
        raise InvalidRequestError("a message of the role tool needs the tool_call_id that it answers", param=f"{where}.tool_call_id")
    if call_id is not None and call_id not in called:
        reason = f"no message before it calls a tool with the id {call_id[:100]!r}"
        raise InvalidRequestError(f"{where} has the role tool, but {reason}", param=f"{where}.tool_call_id")
    if call_id is not None:
        message.setdefault("name", called[call_id])

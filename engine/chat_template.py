"""Chat templates: a conversation to the text of a prompt.

Templates come from the model or from the operator, from a request only where the operator allows it, and run in Jinja's immutable
sandbox, within bounds of time and size (engine/template_bounds.py). The environment gives them what transformers does
(`raise_exception`, `strftime_now`, `tojson`, loop controls, `generation` blocks), since that is what they are written for;
transformers' own function is not used because importing it takes a second, against 30 ms for Jinja.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from engine.errors import ConfigError, InvalidRequestError
from engine.template_bounds import MAX_LENGTH, BoundedEnvironment, bounded_template

_WORD = re.compile(r"\w+")

# Marks where the final message ends in the rendering, when it is to be continued. Private-use characters: no template writes them.
_END_OF_FINAL = "\ue0f8octavo\ue0f9"


class ChatTemplate:
    """One compiled template. Thread-safe. Raises ConfigError when the source is not valid Jinja."""

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
        self.knows_developer = "developer" in source
        self._words = frozenset(_WORD.findall(source))
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._generate = bounded_template(_environment(), source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid: {error}") from error

    def mentions(self, field: str) -> bool:
        """Whether the template may read a message's field of this name."""
        return field in self._words

    def render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, continue_final_message: bool, variables: dict[str, Any]
    ) -> str:
        """The prompt's text. Raises InvalidRequestError with the template's own words when it cannot render the messages."""
        if continue_final_message:
            messages = _mark_final(messages)
        values = {
            **self._tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            rendered = self._render_bounded(values)
        except (InvalidRequestError, MemoryError):
            raise
        except Exception as error:
            # Whatever goes wrong depends on the messages alone: they lack what the template reads, or it says so itself.
            raise InvalidRequestError(f"the chat template cannot render these messages: {error}", param="messages") from error
        return _cut_after_final(rendered) if continue_final_message else rendered

    def _render_bounded(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._generate(values):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_LENGTH:
                raise InvalidRequestError("the chat template makes too long a prompt of these messages", param="messages")
        return "".join(pieces)


def read_template(text_or_path: str) -> str:
    """The template that --chat-template gives: Jinja itself, or a file of it. Raises ConfigError when it is neither."""
    if "{%" in text_or_path or "{{" in text_or_path:
        return text_or_path
    try:
        return Path(text_or_path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template is neither a Jinja template nor a readable file: {error}") from error


def _mark_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    final = messages[-1]
    content = final.get("content")
    if not isinstance(content, str):
        raise InvalidRequestError("continue_final_message needs text in the last message", param="continue_final_message")
    return [*messages[:-1], {**final, "content": content + _END_OF_FINAL}]


def _cut_after_final(rendered: str) -> str:
    head, mark, _ = rendered.rpartition(_END_OF_FINAL)
    if not mark:
        raise InvalidRequestError(
            "the chat template does not show the last message as it is, so it cannot be continued", param="continue_final_message"
        )
    return head.replace(_END_OF_FINAL, "")


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote, for training. Here its content is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

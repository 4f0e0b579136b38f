"""What is new in a chat message, piece by piece, and the parser that finds it in a model's text."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol, TypeAlias

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model wrote to itself before its answer."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """A tool call begins. Its arguments follow in pieces, before the next call's start."""

    index: int  # of the call in its message, from 0
    id: str
    name: str


class ToolArguments(msgspec.Struct, frozen=True):
    """A piece of a call's arguments; all pieces joined are the JSON text that the model wrote."""

    index: int
    text: str


Delta: TypeAlias = Content | Reasoning | ToolCallStart | ToolArguments


class MessageParser(Protocol):
    """Reads one sequence's text as it comes. How the text is cut into pieces does not change what the deltas come to."""

    @property
    def reasoning_tokens(self) -> int:
        """Of the tokens so far, those that were reasoning, its markers included."""
        ...

    def feed(self, text: str, token_ids: SequenceOf[int]) -> list[Delta]:
        """What more text says, and how many of the tokens behind it were reasoning."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back because it might have become something else."""
        ...


class PlainText:
    """The parser of messages that are content and nothing else."""

    reasoning_tokens = 0

    def feed(self, text: str, token_ids: SequenceOf[int]) -> list[Delta]:
        return [Content(text)] if text else []

    def finish(self) -> list[Delta]:
        return []

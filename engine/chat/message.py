"""A chat message, collected from its deltas."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from engine.chat.deltas import Content, Delta, MessageParser, Reasoning, ToolArguments, ToolCallStart


@dataclass
class ToolCall:
    """One call of a function that the model asks for."""

    id: str
    name: str
    arguments: str  # JSON as the model wrote it; valid where a grammar enforced it, and where the model is good


@dataclass
class ChatMessage:
    """What an assistant's message has come to so far."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case ToolCallStart(_, id, name):
                    self.tool_calls.append(ToolCall(id, name, ""))
                case ToolArguments(index, text):
                    self.tool_calls[index].arguments += text


def read_message(parser: MessageParser, text: str, token_ids: SequenceOf[int]) -> ChatMessage:
    """The message of a text that is whole."""
    message = ChatMessage()
    message.add(parser.feed(text, token_ids))
    message.add(parser.finish())
    return message

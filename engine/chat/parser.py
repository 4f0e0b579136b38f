"""Reads a message that may hold reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.chat.deltas import Content, Delta, Reasoning
from engine.reasoning.parser import ReasoningParser
from engine.tool_calls.parser import ToolParser


class RichText:
    """The parser of messages with reasoning in front, tool calls, or both. A call within reasoning is no call."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None, shows_reasoning: bool) -> None:
        self._shows_reasoning = shows_reasoning
        self._reasoning = reasoning
        self._tools = tools

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def feed(self, text: str, token_ids: SequenceOf[int]) -> list[Delta]:
        if self._reasoning is None:
            return self._answer(text)
        reasoning, rest = self._reasoning.feed(text, token_ids)
        return self._thoughts(reasoning) + self._answer(rest)

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._reasoning is not None:
            reasoning, rest = self._reasoning.finish()
            deltas = self._thoughts(reasoning) + self._answer(rest)
        return deltas if self._tools is None else deltas + self._tools.finish()

    def _answer(self, text: str) -> list[Delta]:
        if not text:
            return []
        return [Content(text)] if self._tools is None else self._tools.feed(text)

    def _thoughts(self, text: str) -> list[Delta]:
        return [Reasoning(text)] if text and self._shows_reasoning else []

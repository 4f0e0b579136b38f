"""Reads an answer's reasoning, and hands on what follows it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.reasoning.formats import ReasoningFormat
from engine.tool_calls.text_reader import Steps, TextReader


class ReasoningParser:
    """Splits text in reasoning and the rest. White space around reasoning and around its markers belongs to neither."""

    def __init__(self, format: ReasoningFormat, is_open: bool, end_token_id: int | None) -> None:
        """`is_open`: the answer begins within reasoning. `end_token_id`: the token that ends it, where it is a single one."""
        self.num_tokens = 0  # of the tokens so far, those that were reasoning, its markers included
        self._format = format
        self._is_open = is_open
        self._end_token_id = end_token_id
        self._is_over = False
        self._num_undecided = 0  # tokens before the answer has shown whether it begins with reasoning
        self._reader = TextReader()
        self._steps = self._parse()
        self._reasoning: list[str] = []
        self._rest: list[str] = []
        self._space = ""  # white space that belongs to the reasoning if more of it follows

    def feed(self, text: str, token_ids: SequenceOf[int]) -> tuple[str, str]:
        """The reasoning that more text holds, and what it holds after reasoning."""
        was_over = self._is_over
        self._reader.append(text)
        next(self._steps, None)
        if not was_over:
            self._count(token_ids)
        return self._take()

    def finish(self) -> tuple[str, str]:
        """The rest, when the text is at its end."""
        self._reader.end()
        for _ in self._steps:
            pass
        return self._take()

    def _parse(self) -> Steps[None]:
        self._reader.set_mark()
        yield from self._reader.skip()
        if (yield from self._reader.accept(*self._format.begins)):
            self._is_open = True
        elif not self._is_open:
            self._reader.back_to_mark()
        self._reader.forget_mark()
        if self._is_open:
            yield from self._reader.skip()
            yield from self._reader.pass_until(self._format.ends, self._add_reasoning)
            self._is_over = True
            yield from self._reader.skip()
        self._is_over = True
        yield from self._reader.pass_until((), self._rest.append)

    def _count(self, token_ids: SequenceOf[int]) -> None:
        """Several tokens may come in one piece: those after the one that ends the reasoning do not count."""
        num_tokens = len(token_ids)
        if self._is_over and self._end_token_id in token_ids:
            num_tokens = token_ids.index(self._end_token_id) + 1
        self._num_undecided += num_tokens
        if self._is_open:
            self.num_tokens += self._num_undecided
            self._num_undecided = 0

    def _add_reasoning(self, text: str) -> None:
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._reasoning.append(kept)

    def _take(self) -> tuple[str, str]:
        taken = "".join(self._reasoning), "".join(self._rest)
        self._reasoning.clear()
        self._rest.clear()
        return taken

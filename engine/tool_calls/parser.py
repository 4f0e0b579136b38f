"""What the parsers of all families have in common: they read text, and write content and tool calls."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf

from engine.chat.deltas import Content, Delta, ToolArguments, ToolCallStart
from engine.structured_outputs import StructuralTag
from engine.tool_calls.structure import Spelling
from engine.tool_calls.text_reader import Steps, TextReader
from engine.tool_calls.tools import ToolUse


def call_json(name: str, arguments: str) -> str:
    """A call as a JSON object."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def new_call_id() -> str:
    """An id as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


class CallWriter:
    """Collects what a parser has found.

    White space in front of a call and after one is no content. A call whose name was sent cannot be taken back, so it is begun only when
    its arguments do.
    """

    def __init__(self, new_id: Callable[[], str], only_one: bool) -> None:
        self.num_calls = 0
        self._new_id = new_id
        self._only_one = only_one
        self._space = ""  # white space that is content if more content follows
        self._deltas: list[Delta] = []

    def content(self, text: str) -> None:
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._deltas.append(Content(kept))

    def begin_call(self, name: str, id: str | None = None) -> None:
        self._space = ""
        self.num_calls += 1
        if self._is_wanted:
            self._deltas.append(ToolCallStart(self.num_calls - 1, id or self._new_id(), name))

    def arguments(self, text: str) -> None:
        if text and self._is_wanted:
            self._deltas.append(ToolArguments(self.num_calls - 1, text))

    def finish(self) -> None:
        if self._space and not self.num_calls:
            self._deltas.append(Content(self._space))
        self._space = ""

    def take(self) -> list[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def _is_wanted(self) -> bool:
        return self.num_calls == 1 or not self._only_one


class ToolParser(ABC):
    """Reads one answer. A family's parser says how its calls are written by reading them, as though all of the text were there."""

    markers: tuple[str, ...] = ()  # texts that are single, special tokens in the family's vocabularies, and must not be skipped
    needs_known_names = False  # without markers, only a known function's name tells a call from text
    new_id: Callable[[], str] = staticmethod(new_call_id)

    def __init__(self, names: Collection[str] = (), only_one: bool = False) -> None:
        """`names`: the functions that there are. `only_one`: calls after the first are left out."""
        self.reader = TextReader()
        self.writer = CallWriter(type(self).new_id, only_one)
        self._names = frozenset(names)
        self._steps = self.parse()

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        """Calls, by names and arguments, as the model writes them: for templates of the family that do not show them."""
        return "\n".join(f"<tool_call>\n{call_json(*call)}\n</tool_call>" for call in calls)

    @classmethod
    @abstractmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        """The grammar of the family's calls. Raises InvalidRequestError for a function whose calls it has no grammar for."""

    @abstractmethod
    def parse(self) -> Steps[None]:
        """Read all of `reader`, and write what is found."""

    def feed(self, text: str) -> list[Delta]:
        """What more text says."""
        self.reader.append(text)
        next(self._steps, None)
        return self.writer.take()

    def finish(self) -> list[Delta]:
        """The rest, when the text is at its end."""
        self.reader.end()
        for _ in self._steps:
            pass
        self.writer.finish()
        return self.writer.take()

    def is_callable(self, name: str) -> bool:
        """Whether a call of this name is one."""
        return bool(name) and (not self.needs_known_names or name in self._names)

    def give_back(self, marker: str) -> None:
        """What stands after the mark is no call after all: marker and text are content."""
        self.writer.content(marker)
        self.reader.back_to_mark()

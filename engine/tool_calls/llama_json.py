"""Llama 3.1 and 3.2: the whole answer is `{"name": ..., "parameters": {...}}`, several of them with semicolons between."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_object import Outcome, read_call, spill
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.structure import Spelling, quoted, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse

_TAG = "<|python_tag|>"


class LlamaJsonParser(ToolParser):
    """Calls stand at the beginning, or after a tag. Without a marker of their own, only a known function's name tells them from text."""

    markers = (_TAG,)
    needs_known_names = True

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        return "; ".join(f'{{"name": {quoted(name)}, "parameters": {arguments}}}' for name, arguments in calls)

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        begin = '{"name": '
        tags = [Tag(begin=f'{begin}{quoted(tool.name)}, "parameters": ', json=tool.schema(), end="}") for tool in use.tools]
        return structure(use, tags, begin, separator="; ")

    def parse(self) -> Steps[None]:
        self.reader.set_mark()
        if not (yield from self._read_calls()):
            self.reader.back_to_mark()
        while marker := (yield from self.reader.pass_until((_TAG,), self.writer.content)):
            self.reader.set_mark()
            if not (yield from self._read_calls()):
                self.give_back(marker)

    def _read_calls(self) -> Steps[bool]:
        """Read the calls that stand here; false when there is none. The mark is moved behind the last."""
        found = False
        while True:
            yield from self.reader.skip()
            outcome = yield from read_call(self)
            if outcome is Outcome.NO_CALL:
                if found:
                    self.reader.back_to_mark()
                return found
            if outcome is Outcome.TORN:
                self.reader.forget_mark()
                yield from spill(self)
                return True
            found = True
            self.reader.set_mark()
            yield from self.reader.skip(" \t\r\n;")
            yield from self.reader.accept(_TAG)

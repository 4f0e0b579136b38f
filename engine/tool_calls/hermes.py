"""Hermes 2 Pro, Qwen 2.5 and 3, and templates that know no tools: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_object import Outcome, read_call, spill
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.structure import Spelling, json_rule, quoted, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse

_BEGIN = "<tool_call>"
_END = "</tool_call>"


class HermesParser(ToolParser):
    """Calls stand between tags, one in each; text may stand before, between and after them."""

    markers = (_BEGIN, _END)

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        end = f'"}}" "\\n" {spelling.marker(_END)}'
        tags = [
            Tag(begin=f'{_BEGIN}\n{{"name": {quoted(tool.name)}, "arguments": ', grammar=f"start: {json_rule(tool.schema())} {end}")
            for tool in use.tools
        ]
        return structure(use, tags, _BEGIN, separator="\n")

    def parse(self) -> Steps[None]:
        while (yield from self.reader.pass_until((_BEGIN,), self.writer.content)):
            self.reader.set_mark()
            yield from self.reader.skip()
            outcome = yield from read_call(self)
            if outcome is Outcome.NO_CALL:
                self.give_back(_BEGIN)
                continue
            self.reader.forget_mark()
            if outcome is Outcome.TORN:
                yield from spill(self, _END)
            else:
                yield from self.reader.skip(" \t\r\n}")  # a bracket too many is no loss
                yield from self.reader.accept(_END)

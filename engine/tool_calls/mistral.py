"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` up to v7, then `[TOOL_CALLS]name[ARGS]{...}` once for each call."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence as SequenceOf

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_list import read_call_list
from engine.tool_calls.call_object import Outcome, spill, stream_object
from engine.tool_calls.parser import ToolParser, call_json
from engine.tool_calls.structure import Spelling, call_object, json_rule, list_of_calls, quoted, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse

_BEGIN = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"


def new_short_id() -> str:
    """Nine letters or digits: Mistral's templates refuse messages with other ids."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class MistralParser(ToolParser):
    """Reads both forms; which one it is shows after the marker."""

    markers = (_BEGIN, _ID, _ARGUMENTS)
    new_id = staticmethod(new_short_id)

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        if _ARGUMENTS in spelling.template:
            return "".join(f"{_BEGIN}{name}{_ARGUMENTS}{arguments}" for name, arguments in calls)
        return f"{_BEGIN} [{', '.join(call_json(*call) for call in calls)}]"

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        if _ARGUMENTS not in spelling.template:
            grammar = list_of_calls(use, [call_object(tool) for tool in use.tools])
            return structure(use, [Tag(begin=_BEGIN, grammar=grammar)], _BEGIN, only_one=True)
        tags = [
            Tag(begin=_BEGIN, grammar=f"start: {quoted(tool.name)} {spelling.marker(_ARGUMENTS)} {json_rule(tool.schema())}")
            for tool in use.tools
        ]
        return structure(use, tags, _BEGIN)

    def parse(self) -> Steps[None]:
        while (yield from self.reader.pass_until((_BEGIN,), self.writer.content)):
            self.reader.set_mark()
            yield from self.reader.skip()
            if (yield from self.reader.peek()) == "[":
                self.reader.back_to_mark()
                self.reader.set_mark()
                yield from read_call_list(self, _BEGIN, "")
            else:
                yield from self._read_named_call()

    def _read_named_call(self) -> Steps[None]:
        name = (yield from self.reader.read_while(lambda character: character not in "[{")).strip()
        id = ""
        if (yield from self.reader.accept(_ID)):
            id = (yield from self.reader.read_while(lambda character: character not in "[{")).strip()
        yield from self.reader.accept(_ARGUMENTS)
        yield from self.reader.skip()
        if not self.is_callable(name) or (yield from self.reader.peek()) != "{":
            self.give_back(_BEGIN)
            return
        self.reader.forget_mark()
        self.writer.begin_call(name, id or None)
        if (yield from stream_object(self)) is Outcome.TORN:
            yield from spill(self)

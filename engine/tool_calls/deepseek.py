"""DeepSeek V3 and V3.1. Each call stands between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`, all of them between the plurals.

V3 and R1 write `function<｜tool▁sep｜>name`, and the arguments in a fenced block of JSON; V3.1 writes `name<｜tool▁sep｜>{...}`.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_object import Outcome, spill, stream_object
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.structure import Spelling, json_rule, list_of_calls, quoted, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


class DeepSeekParser(ToolParser):
    """Reads both forms; which one it is shows after the separator."""

    markers = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        if _FENCE in spelling.template:
            written = [f"function{SEPARATOR}{name}\n{_FENCE}json\n{arguments}\n{_FENCE}" for name, arguments in calls]
        else:
            written = [f"{name}{SEPARATOR}{arguments}" for name, arguments in calls]
        return CALLS_BEGIN + "".join(f"{CALL_BEGIN}{call}{CALL_END}" for call in written) + CALLS_END

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        is_fenced = _FENCE in spelling.template
        begin, separator, end = map(spelling.marker, (CALL_BEGIN, SEPARATOR, CALL_END))
        calls = []
        for tool in use.tools:
            if is_fenced:
                opening, closing = quoted(f"{tool.name}\n{_FENCE}json\n"), quoted("\n" + _FENCE)
                head, tail = f'{begin} "function" {separator} {opening}', closing
            else:
                head, tail = f"{begin} {quoted(tool.name)} {separator}", ""
            calls.append(f"{head} {json_rule(tool.schema())} {tail} {end}")
        grammar = list_of_calls(use, calls, separator=quoted("\n") if is_fenced else "", around=("", spelling.marker(CALLS_END)))
        return structure(use, [Tag(begin=CALLS_BEGIN, grammar=grammar)], CALLS_BEGIN, only_one=True)

    def parse(self) -> Steps[None]:
        while (yield from self.reader.pass_until((CALLS_BEGIN,), self.writer.content)):
            self.reader.set_mark()
            num_calls = 0
            while (yield from self._read_call()):
                num_calls += 1
                self.reader.set_mark()
            self.give_back("" if num_calls else CALLS_BEGIN)
            if num_calls:
                yield from self.reader.skip()
                yield from self.reader.accept(CALLS_END)

    def _read_call(self) -> Steps[bool]:
        """Read one call; false when there is none."""
        yield from self.reader.skip()
        if not (yield from self.reader.accept(CALL_BEGIN)):
            return False
        first = yield from self._read_word()
        if not (yield from self.reader.accept(SEPARATOR)):
            return False
        yield from self.reader.skip()
        name = first
        if (yield from self.reader.peek()) != "{":
            name = yield from self._read_word()
            if not (yield from self.reader.accept(_FENCE)):
                return False
            yield from self.reader.accept("json")
            yield from self.reader.skip()
        if not self.is_callable(name) or (yield from self.reader.peek()) != "{":
            return False
        self.reader.forget_mark()
        self.writer.begin_call(name)
        if (yield from stream_object(self)) is Outcome.TORN:
            yield from spill(self, CALL_END)
            return True
        yield from self.reader.skip(" \t\r\n`")
        yield from self.reader.accept(CALL_END)
        return True

    def _read_word(self) -> Steps[str]:
        return (yield from self.reader.read_while(lambda character: character not in "<{`")).strip()

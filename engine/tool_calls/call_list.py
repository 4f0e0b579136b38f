"""Calls in one JSON list after a marker: Granite, Phi-4-mini, and Mistral's older models."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_object import Outcome, read_call, spill
from engine.tool_calls.parser import ToolParser, call_json
from engine.tool_calls.structure import Spelling, call_object, list_of_calls, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse


def read_call_list(parser: ToolParser, marker: str, end: str) -> Steps[None]:
    """Read `[{...}, {...}]`, or one call, and the end marker, if it is there. What is none becomes content, the marker too.

    The marker has been read, and its end is marked.
    """
    yield from parser.reader.skip()
    bracket = yield from parser.reader.accept("[")
    num_calls = 0
    while True:
        yield from parser.reader.skip()
        outcome = yield from read_call(parser)
        if outcome is Outcome.NO_CALL:
            parser.give_back("" if num_calls else marker)
            return
        parser.reader.forget_mark()
        num_calls += 1
        if outcome is Outcome.TORN:
            yield from spill(parser, *([end] if end else []))
            return
        yield from parser.reader.skip()
        if not bracket or not (yield from parser.reader.accept(",")):
            break
        parser.reader.set_mark()
    if bracket:
        yield from parser.reader.accept("]")
    if end:
        yield from parser.reader.skip()
        yield from parser.reader.accept(end)


class _ListParser(ToolParser):
    begins: tuple[str, ...]
    end = ""

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        return f"{cls.begins[0]}[{', '.join(call_json(*call) for call in calls)}]{cls.end}"

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        grammar = list_of_calls(use, [call_object(tool) for tool in use.tools])
        return structure(use, [Tag(begin=cls.begins[0], grammar=grammar, end=cls.end)], cls.begins[0], only_one=True)

    def parse(self) -> Steps[None]:
        while marker := (yield from self.reader.pass_until(self.begins, self.writer.content)):
            self.reader.set_mark()
            yield from read_call_list(self, marker, self.end)


class GraniteParser(_ListParser):
    """Granite 3: `<|tool_call|>[{"name": ..., "arguments": {...}}]`; 3.0 writes `<tool_call>`."""

    begins = ("<|tool_call|>", "<tool_call>")
    markers = begins


class Phi4Parser(_ListParser):
    """Phi-4-mini: `<|tool_call|>[{...}]<|/tool_call|>`, or one call in each pair of markers, or `functools[{...}]`."""

    begins = ("<|tool_call|>", "functools")
    end = "<|/tool_call|>"
    markers = ("<|tool_call|>", "<|/tool_call|>")

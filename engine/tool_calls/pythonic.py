"""Llama 3.2 and 4, pythonic: the whole answer is `[weather(city="Paris", days=2), time()]`."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence as SequenceOf
from typing import Any

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.call_object import Outcome
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.pythonic_grammar import call_expression
from engine.tool_calls.structure import Spelling, list_of_calls, structure
from engine.tool_calls.text_reader import Steps
from engine.tool_calls.tools import ToolUse

_BEGIN = "<|python_start|>"
_END = "<|python_end|>"
_OPENS = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's, which models mix in


class PythonicParser(ToolParser):
    """Each argument is sent as JSON when its Python value is whole."""

    markers = (_BEGIN, _END)
    needs_known_names = True

    @classmethod
    def call_text(cls, calls: SequenceOf[tuple[str, str]], spelling: Spelling) -> str:
        return f"[{', '.join(_expression(*call) for call in calls)}]"

    @classmethod
    def structure(cls, use: ToolUse, spelling: Spelling) -> StructuralTag:
        call = list_of_calls(use, [call_expression(tool) for tool in use.tools], around=("", '"]"'))
        return structure(use, [Tag(begin="[", grammar=call)], "[", only_one=True)

    def parse(self) -> Steps[None]:
        self.reader.set_mark()
        yield from self.reader.skip()
        yield from self.reader.accept(_BEGIN)
        yield from self.reader.skip()
        if (yield from self.reader.accept("[")):
            yield from self._read_calls()
        else:
            self.reader.back_to_mark()
        yield from self.reader.pass_until((), self.writer.content)

    def _read_calls(self) -> Steps[None]:
        outcome = Outcome.NO_CALL
        while True:
            yield from self.reader.skip()
            outcome = yield from self._read_call()
            if outcome is not Outcome.CALL:
                break
            self.reader.set_mark()
            yield from self.reader.skip()
            if not (yield from self.reader.accept(",")):
                break
        if outcome is Outcome.NO_CALL:
            self.reader.back_to_mark()
            return
        self.reader.forget_mark()
        if outcome is Outcome.TORN:
            yield from self.reader.pass_until((), lambda text: None)  # it has no form in JSON
            return
        yield from self.reader.accept("]")
        yield from self.reader.skip()
        yield from self.reader.accept(_END)

    def _read_call(self) -> Steps[Outcome]:
        name = yield from self.reader.read_while(lambda character: character.isalnum() or character in "_.-")
        if not self.is_callable(name) or not (yield from self.reader.accept("(")):
            return Outcome.NO_CALL
        begun = False
        while True:
            yield from self.reader.skip()
            if (yield from self.reader.accept(")")):
                break
            argument = yield from self._read_argument()
            if argument is None:
                return Outcome.TORN if begun else Outcome.NO_CALL
            if not begun:
                self.writer.begin_call(name)
            self.writer.arguments((", " if begun else "{") + argument)
            begun = True
            yield from self.reader.skip()
            yield from self.reader.accept(",")
        if not begun:
            self.writer.begin_call(name)
        self.writer.arguments("}" if begun else "{}")
        return Outcome.CALL

    def _read_argument(self) -> Steps[str | None]:
        """`name=value` as `"name": value`."""
        name = yield from self.reader.read_while(lambda character: character.isalnum() or character == "_")
        yield from self.reader.skip()
        if not name or not (yield from self.reader.accept("=")):
            return None
        scanner = _ValueScanner()
        pieces: list[str] = []
        yield from self.reader.scan(scanner, pieces.append)
        if not scanner.finished:
            return None
        try:
            value = _evaluate(ast.parse("".join(pieces).strip(), mode="eval").body)
            return f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None


class _ValueScanner:
    """Takes a Python value up to the comma or bracket after it."""

    def __init__(self) -> None:
        self.finished = False
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def read(self, text: str, start: int) -> int:
        for place in range(start, len(text)):
            character = text[place]
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
            elif character in "'\"":
                self._quote = character
            elif character in _OPENS:
                self._open.append(_OPENS[character])
            elif character in ")]}":
                if not self._open or character != self._open.pop():
                    self.finished = True
                    return place
            elif character == "," and not self._open:
                self.finished = True
                return place
        return len(text)


def _expression(name: str, arguments: str) -> str:
    """A call in Python, its values in JSON; arguments that are no JSON as they are."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in values.items())})"


def _evaluate(node: ast.expr) -> Any:
    """The value of a literal. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value) if value is None or isinstance(value, str | int | float):
            return value
        case ast.Name(id) if id in _CONSTANTS:
            return _CONSTANTS[id]
        case ast.List(items) | ast.Tuple(items):
            return [_evaluate(item) for item in items]
        case ast.Dict(keys, values):
            return {_key(key): _evaluate(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, int | float):
            return -value
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    key = None if node is None else _evaluate(node)
    if not isinstance(key, str):
        raise ValueError("JSON has no such key")
    return key

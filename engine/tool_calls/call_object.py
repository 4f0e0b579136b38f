"""Reads a call that is written as a JSON object: {"name": ..., "arguments": {...}}, as most families write it."""

from __future__ import annotations

import json
from enum import Enum

from engine.tool_calls.json_scanner import JsonScanner
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.text_reader import Steps, TextReader

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_BEFORE_ARGUMENTS = (*_NAMES, *_ARGUMENTS, "type", "id")


class Outcome(Enum):
    NO_CALL = "what stands there is no call, and nothing has been written"
    CALL = "a call, with all of its arguments"
    TORN = "a call was begun, and its arguments break off"


def read_call(parser: ToolParser) -> Steps[Outcome]:
    """Read one object and write the call that it is. The reader stops where the object does, or where it stops to be one."""
    if not (yield from parser.reader.accept("{")):
        return Outcome.NO_CALL
    name: str | None = None
    held: str | None = None  # arguments that came before the name
    begun = False
    while True:
        key = yield from _read_key(parser.reader)
        if key is None:
            break
        if key in _ARGUMENTS and name is not None and not begun:
            outcome = yield from _read_arguments(parser, name)
            if outcome is not Outcome.CALL:
                return outcome
            begun = True
        elif key == "function" and (yield from parser.reader.peek()) == "{" and name is None:
            outcome = yield from read_call(parser)  # {"type": "function", "function": {...}}
            if outcome is Outcome.CALL:
                yield from parser.reader.skip()
                yield from parser.reader.accept("}")
            return outcome
        else:
            if not begun and key not in _BEFORE_ARGUMENTS:
                return Outcome.NO_CALL  # at once: what is held back here may be a long answer in JSON
            value = yield from read_value(parser.reader)
            if value is None:
                break
            if key in _NAMES and name is None:
                name = _as_string(value)
                if name is None or not parser.is_callable(name):
                    return Outcome.NO_CALL
            elif key in _ARGUMENTS and held is None:
                held = value
        yield from parser.reader.skip()
        if not (yield from parser.reader.accept(",")):
            break
    closed = yield from parser.reader.accept("}")
    if begun:
        return Outcome.CALL  # a bracket that is missing after the arguments is no loss
    arguments = "{}" if held is None else _as_arguments(held)
    if not closed or name is None or arguments is None:
        return Outcome.NO_CALL
    parser.writer.begin_call(name)
    parser.writer.arguments(arguments)
    return Outcome.CALL


def read_value(reader: TextReader) -> Steps[str | None]:
    """Read one JSON value; None when there is none, or only a part of one."""
    pieces: list[str] = []
    scanner = JsonScanner()
    yield from reader.scan(scanner, pieces.append)
    scanner.end()
    return "".join(pieces) if scanner.complete else None


def stream_object(parser: ToolParser) -> Steps[Outcome]:
    """Read a JSON object as the arguments of a call that was begun."""
    scanner = JsonScanner()
    yield from parser.reader.scan(scanner, parser.writer.arguments)
    return Outcome.CALL if scanner.complete else Outcome.TORN


def spill(parser: ToolParser, *ends: str) -> Steps[None]:
    """Read on to the end of a call that is torn. Its reader is shown all that the model wrote as arguments."""
    yield from parser.reader.pass_until(ends, parser.writer.arguments)


def _read_key(reader: TextReader) -> Steps[str | None]:
    """Read a key and its colon, and the space around them."""
    yield from reader.skip()
    if (yield from reader.peek()) != '"':
        return None
    key = yield from read_value(reader)
    yield from reader.skip()
    if key is None or not (yield from reader.accept(":")):
        return None
    yield from reader.skip()
    return _as_string(key)


def _read_arguments(parser: ToolParser, name: str) -> Steps[Outcome]:
    if (yield from parser.reader.peek()) == "{":
        parser.writer.begin_call(name)
        return (yield from stream_object(parser))
    value = yield from read_value(parser.reader)
    arguments = None if value is None else _as_arguments(value)
    if arguments is None:
        return Outcome.NO_CALL
    parser.writer.begin_call(name)
    parser.writer.arguments(arguments)
    return Outcome.CALL


def _as_arguments(value: str) -> str | None:
    """Arguments as an object; some models write a string that holds one, or null for none."""
    if value == "null":
        return "{}"
    text = _as_string(value) if value.startswith('"') else value
    return text if text is not None and text.lstrip().startswith("{") else None


def _as_string(value: str) -> str | None:
    try:
        read = json.loads(value, strict=False)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, str) else None

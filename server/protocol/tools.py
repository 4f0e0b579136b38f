"""`tools`, `tool_choice` and `parallel_tool_calls`, and the ToolUse that they make."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.errors import InvalidRequestError
from engine.tool_calls.schema import find_fault
from engine.tool_calls.tools import Tool, ToolUse
from server.errors import unsupported
from server.protocol.body import RequestBody

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class FunctionBody(RequestBody):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(RequestBody):
    """One tool. Those of other types are refused later, with an error of their own."""

    type: str
    function: FunctionBody | None = None
    custom: dict[str, Any] | None = None


class FunctionName(RequestBody):
    name: str


class NamedTool(RequestBody):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestBody):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolsChoice(RequestBody):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice


def tool_use(tools: list[ToolBody], choice: ToolChoice | None, parallel: bool) -> ToolUse | None:
    """What the answer may call; None for nothing. Raises InvalidRequestError, or ApiError for tools that are no functions."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice is only allowed when tools are given", param="tool_choice")
        return None
    known = _by_name(tools)
    only_one = not parallel
    match choice:
        case "none":
            return None
        case NamedTool(function=function):
            return ToolUse((_named(known, function.name, "tool_choice.function.name"),), required=True, only_one=True)
        case AllowedToolsChoice(allowed_tools=allowed):
            where = "tool_choice.allowed_tools.tools"
            names = dict.fromkeys(tool.function.name for tool in allowed.tools)
            chosen = tuple(_named(known, name, where) for name in names)
            return ToolUse(chosen, allowed.mode == "required", only_one, restricted=len(chosen) < len(known))
    return ToolUse(tuple(known.values()), choice == "required", only_one)


def _by_name(tools: list[ToolBody]) -> dict[str, Tool]:
    known: dict[str, Tool] = {}
    for index, body in enumerate(tools):
        where = f"tools.{index}"
        if body.type != "function":
            raise unsupported(f"{where}.type", f"{where} is of the type {body.type[:50]!r}, but the model can call functions alone")
        if body.function is None:
            raise InvalidRequestError(f"{where}.function: this field is required", param=f"{where}.function")
        tool = _tool(body.function, f"{where}.function")
        if tool.name in known:
            raise InvalidRequestError(f"{where}.function.name: there are two functions of the name {tool.name!r}", param=where)
        known[tool.name] = tool
    return known


def _tool(function: FunctionBody, where: str) -> Tool:
    if not _NAME.fullmatch(function.name):
        message = f"{where}.name must be 1 to 128 letters, digits, _ or -, but is {function.name[:200]!r}"
        raise InvalidRequestError(message, param=f"{where}.name")
    fault = None if function.parameters is None else find_fault(function.parameters)
    if fault is not None:
        message = f"{where}.parameters is no JSON schema of an object: {fault}"
        raise InvalidRequestError(message, param=f"{where}.parameters", code="invalid_function_parameters")
    return Tool(function.name, function.description, function.parameters, function.strict is True)


def _named(known: dict[str, Tool], name: str, where: str) -> Tool:
    if name not in known:
        raise InvalidRequestError(f"{where} names {name[:200]!r}, which is not among the tools", param=where)
    return known[name]

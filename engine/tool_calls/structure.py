"""What the families' formats have in common where calls are generated under a grammar: StructuralTag and Lark rules for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.structured_outputs import StructuralTag, Tag
from engine.tool_calls.tools import Tool, ToolUse

MAX_CALLS = 32  # of one answer: small models that must call do not always find an end


@dataclass(frozen=True)
class Spelling:
    """What of the model decides how its format is spelled."""

    template: str
    special_token: Callable[[str], int | None]  # the id of the special token of this name, if there is one

    def marker(self, text: str) -> str:
        """A marker in Lark: a special token, or a text."""
        token_id = self.special_token(text)
        return quoted(text) if token_id is None else f"<[{token_id}]>"


def structure(use: ToolUse, tags: list[Tag], trigger: str, separator: str = "", only_one: bool = False) -> StructuralTag:
    """Free text with calls in it, or calls alone where one is required. `only_one`: a tag may hold several calls, and comes once."""
    return StructuralTag(
        tags=tuple(tags),
        triggers=(trigger,),
        free_text=not use.required,
        min_tags=int(use.required),
        max_tags=1 if use.only_one or only_one else MAX_CALLS,
        separator=separator,
    )


def list_of_calls(use: ToolUse, calls: list[str], separator: str = '", "', around: tuple[str, str] = ('"["', '"]"')) -> str:
    """A Lark grammar for one or more of the calls, each a rule's body; separator and what stands around them are Lark too."""
    more = "" if use.only_one else f"({separator} call){{0,{MAX_CALLS - 1}}}"
    rules = [f"call_{index}: {call}" for index, call in enumerate(calls)]
    names = " | ".join(f"call_{index}" for index in range(len(calls)))
    return "\n".join([f"start: {around[0]} call {more} {around[1]}", f"call: {names}", *rules])


def call_object(tool: Tool) -> str:
    """`{"name": ..., "arguments": {...}}` in Lark."""
    opening = f'{{"name": {quoted(tool.name)}, "arguments": '
    return f"{quoted(opening)} {json_rule(tool.schema())} {quoted('}')}"


def json_rule(schema: Any) -> str:
    """What fits the schema, in llguidance's Lark."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def quoted(text: str) -> str:
    """A text in Lark, which quotes as JSON does."""
    return json.dumps(text, ensure_ascii=False)

"""Calls that are generated under a family's grammar: whatever is drawn, the family's parser reads valid calls of it."""

from __future__ import annotations

import json
import random
from functools import cache

import jsonschema
import msgspec
import numpy as np
import pytest
import tokenizers

from engine.chat.message import ChatMessage
from engine.errors import InvalidRequestError
from engine.grammar.compiler import GrammarCompiler
from engine.loader.resolve import resolve_model
from engine.structured_outputs import StructuredOutputs
from engine.tokenizer import Tokenizer
from engine.tool_calls.formats import FORMATS
from engine.tool_calls.structure import Spelling
from engine.tool_calls.tools import Tool, ToolUse

# Schemas without free text, so that what is drawn at random comes to an end.
WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", 'San "Francisco"']},
            "days": {"type": "integer", "minimum": 1, "maximum": 20},
            "place": {"$ref": "#/$defs/place"},
            "exact": {"type": "boolean"},
        },
        "required": ["city", "place"],
        "$defs": {"place": {"type": "object", "properties": {"level": {"enum": [1, 2]}}, "required": ["level"]}},
    },
)
TIME = Tool("time", strict=True)
# Both ways in which templates of one family differ.
TEMPLATES = {"mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][ARGS]"], "deepseek_v3": ["```json", ""]}
CASES = [(family, template) for family in FORMATS for template in TEMPLATES.get(family, [""])]


@cache
def _tokenizer(family: str) -> Tokenizer:
    """The default model's tokens, and the family's markers as special tokens."""
    plain = resolve_model(None).tokenizer()
    backend = tokenizers.Tokenizer.from_str(plain.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(marker, special=True, normalized=False) for marker in FORMATS[family].markers])
    return Tokenizer(backend, {"eos_token": plain.eos_token})


@cache
def _compiler(family: str) -> GrammarCompiler:
    tokenizer = _tokenizer(family)
    return GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def _constraint(family: str, template: str, use: ToolUse) -> StructuredOutputs:
    tokenizer = _tokenizer(family)

    def special_token(name: str) -> int | None:
        token_id = tokenizer.token_to_id(name)
        return token_id if token_id is not None and tokenizer.is_special(token_id) else None

    return StructuredOutputs(structural_tag=FORMATS[family].structure(use, Spelling(template, special_token)))


def _draw(family: str, template: str, use: ToolUse, seed: int, limit: int = 400) -> str:
    """A random text of the grammar, ended as soon as it may end."""
    from engine.grammar.masks import masked_tokens

    tokenizer, compiler = _tokenizer(family), _compiler(family)
    matcher = compiler.matcher(_constraint(family, template, use))
    draw = random.Random(seed)
    text = b""
    for _ in range(limit):
        if matcher.is_stopped() or (text and matcher.is_accepting()):
            return text.decode()
        allowed = np.flatnonzero(~masked_tokens([matcher], compiler.vocab_size)[0])
        token_id = int(draw.choice(allowed))
        assert matcher.consume_token(token_id)
        text += tokenizer.token_bytes(token_id)
    raise AssertionError(f"no end: {text!r}")


def _calls(family: str, text: str) -> list[tuple[str, str]]:
    parser = FORMATS[family](["get_weather", "time"])
    message = ChatMessage()
    for character in text:
        message.add(parser.feed(character))
    message.add(parser.finish())
    assert not message.content.strip()
    return [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize(("family", "template"), CASES)
@pytest.mark.parametrize("only_one", [True, False])
def test_whatever_is_drawn_is_a_valid_call(family: str, template: str, only_one: bool) -> None:
    schemas = {tool.name: tool.schema() for tool in (WEATHER, TIME)}
    for seed in range(3):
        text = _draw(family, template, ToolUse((WEATHER, TIME), required=True, only_one=only_one), seed)
        calls = _calls(family, text)
        assert len(calls) == 1 if only_one else calls, text
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[name])


@pytest.mark.parametrize(("family", "template"), CASES)
def test_text_is_free_where_no_call_is_required(family: str, template: str) -> None:
    matcher = _compiler(family).matcher(_constraint(family, template, ToolUse((TIME,))))
    tokenizer = _tokenizer(family)
    for token_id in tokenizer.encode("It is noon, [as] {you} know. <b>No</b> call.", add_special_tokens=False)[:1]:
        assert matcher.consume_token(token_id)
    assert matcher.is_accepting()


@pytest.mark.parametrize(("family", "template"), [case for case in CASES if case[0] not in ("pythonic",)])
def test_several_calls_may_follow_each_other_unless_one_is_wanted(family: str, template: str) -> None:
    use = ToolUse((TIME,), required=True)
    one = _draw(family, template, ToolUse((TIME,), required=True, only_one=True), 0)
    assert len(_calls(family, one)) == 1
    matcher = _compiler(family).matcher(_constraint(family, template, use))
    tokenizer = _tokenizer(family)
    token_ids = tokenizer.encode(one, add_special_tokens=False)
    # Up to where the single call ends: from there on another may begin, so that the end is not the only way to go on.
    consumed = matcher.try_consume_tokens(token_ids)
    assert consumed == len(token_ids)


def test_a_schema_that_says_more_than_its_properties_is_refused_where_arguments_are_python() -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]})
    with pytest.raises(InvalidRequestError, match="anyOf"):
        _constraint("pythonic", "", ToolUse((tool,), required=True))


def test_properties_that_a_schema_does_not_name_are_not_generated_unless_it_speaks_of_others() -> None:
    closed = Tool("f", parameters={"properties": {"a": {"type": "object", "properties": {}}}}).schema()
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"]["additionalProperties"] is False
    opened = Tool("f", parameters={"properties": {}, "additionalProperties": True}).schema()
    assert opened["additionalProperties"] is True
    combined = Tool("f", parameters={"properties": {}, "allOf": []}).schema()
    assert "additionalProperties" not in combined


@pytest.mark.parametrize(("family", "template"), CASES)
def test_an_answer_that_is_otherwise_constrained_is_calls_or_that(family: str, template: str) -> None:
    calls = _constraint(family, template, ToolUse((TIME,), required=True, only_one=True)).structural_tag
    assert calls is not None
    either = StructuredOutputs(structural_tag=msgspec.structs.replace(calls, otherwise=StructuredOutputs(choice=("yes", "no"))))
    tokenizer = _tokenizer(family)
    for text in (_draw(family, template, ToolUse((TIME,), required=True, only_one=True), 0), "yes"):
        matcher = _compiler(family).matcher(either)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert matcher.try_consume_tokens(token_ids) == len(token_ids)
        assert matcher.is_accepting()
    assert not _compiler(family).matcher(either).try_consume_tokens(tokenizer.encode("maybe", add_special_tokens=False))

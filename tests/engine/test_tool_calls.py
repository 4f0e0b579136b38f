"""Tool calls in the formats of all families, read from text that comes in any pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_transcripts import BROKEN, WHOLE, Transcript

from engine.chat.deltas import Content, Delta, ToolArguments, ToolCallStart
from engine.chat.message import ChatMessage
from engine.detokenizer import IncrementalDetokenizer
from engine.loader.resolve import resolve_model
from engine.tokenizer import Tokenizer
from engine.tool_calls.formats import FORMATS, find_format

NAMES = ("get_weather", "time")
ALL = WHOLE + BROKEN


def _ids(transcripts: list[Transcript]) -> list[str]:
    return [f"{transcript.family}-{index}" for index, transcript in enumerate(transcripts)]


def _read(family: str, pieces: Iterable[str], only_one: bool = False) -> list[Delta]:
    parser = FORMATS[family](NAMES, only_one)
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()


def _meaning(deltas: list[Delta]) -> tuple[str, list[tuple[str, str]]]:
    message = ChatMessage()
    message.add(deltas)
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


def _tokens(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


@pytest.mark.parametrize("transcript", ALL, ids=_ids(ALL))
def test_a_familys_transcript_means_what_its_makers_say(transcript: Transcript) -> None:
    assert _meaning(_read(transcript.family, [transcript.text])) == (transcript.content, transcript.calls)


@pytest.mark.parametrize("transcript", ALL, ids=_ids(ALL))
def test_the_pieces_in_which_a_transcript_comes_change_nothing(transcript: Transcript) -> None:
    expected = (transcript.content, transcript.calls)
    for size in range(1, 9):
        assert _meaning(_read(transcript.family, _tokens(transcript.text, size))) == expected
    for cut in range(len(transcript.text)):
        assert _meaning(_read(transcript.family, [transcript.text[:cut], transcript.text[cut:]])) == expected


@cache
def _tokenizer() -> Tokenizer:
    return resolve_model(None).tokenizer()


@pytest.mark.parametrize("transcript", ALL, ids=_ids(ALL))
def test_token_by_token_it_means_the_same(transcript: Transcript) -> None:
    tokenizer = _tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer)
    token_ids = tokenizer.encode(transcript.text, add_special_tokens=False)
    pieces = [detokenizer.append([token_id]) for token_id in token_ids]
    assert "".join(pieces) == transcript.text
    assert _meaning(_read(transcript.family, pieces)) == (transcript.content, transcript.calls)


def _check_pairs_of_cuts(transcript: Transcript) -> None:
    text = transcript.text
    for first, second in itertools.combinations(range(len(text)), 2):
        deltas = _read(transcript.family, [text[:first], text[first:second], text[second:]])
        assert _meaning(deltas) == (transcript.content, transcript.calls), (first, second)


@pytest.mark.parametrize("transcript", BROKEN, ids=_ids(BROKEN))
def test_every_pair_of_cuts_changes_nothing(transcript: Transcript) -> None:
    _check_pairs_of_cuts(transcript)


@pytest.mark.slow
@pytest.mark.parametrize("transcript", WHOLE, ids=_ids(WHOLE))
def test_every_pair_of_cuts_of_a_long_transcript_changes_nothing(transcript: Transcript) -> None:
    _check_pairs_of_cuts(transcript)


_FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "functools",
        "<|python_tag|>",
        "<|python_start|>",
        "<|python_end|>",
    ),
    *(
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
    ),
    *(
        "<｜tool▁sep｜>",
        "function",
        "```json\n",
        "\n```",
        '{"name": ',
        '"time"',
        ', "arguments": ',
        ', "parameters": ',
        "{}",
        '{"a": [1, "b\\""]}',
    ),
    *("{", "}", "[", "]", "(", ")", "a=", "'x'", ",", ";", " ", "\n", "time", "time(", "get_weather", "null", '"', "\\", "1e5", "é"),
]
_WRITING = st.lists(st.sampled_from(_FRAGMENTS), max_size=14).map("".join)


@pytest.mark.parametrize("family", FORMATS)
@given(text=_WRITING, data=st.data())
def test_any_text_in_any_pieces_means_the_same(family: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = _meaning(_read(family, [text]))
    assert _meaning(_read(family, pieces)) == expected
    assert _meaning(_read(family, text)) == expected


@pytest.mark.parametrize("family", FORMATS)
@given(text=_WRITING)
def test_text_without_a_call_is_given_back_to_the_letter(family: str, text: str) -> None:
    content, calls = _meaning(_read(family, text))
    assert calls or content == text


@pytest.mark.parametrize("family", FORMATS)
@given(text=_WRITING)
def test_a_call_begins_with_its_name_and_its_arguments_follow_before_the_next(family: str, text: str) -> None:
    current = -1
    for delta in _read(family, text):
        if isinstance(delta, ToolCallStart):
            current += 1
            assert (delta.index, delta.name != "") == (current, True)
        elif isinstance(delta, ToolArguments):
            assert delta.index == current


def test_the_name_comes_before_the_arguments_are_there_and_they_come_as_they_are_written() -> None:
    parser = FORMATS["hermes"](NAMES)
    assert parser.feed('Hm. <tool_call>{"name": "time", "arguments": ') == [Content("Hm.")]
    (start,) = parser.feed("{")[:1]
    assert isinstance(start, ToolCallStart)
    assert start.name == "time"
    assert parser.feed('"zone": "U') == [ToolArguments(0, '"zone": "U')]
    assert parser.feed('TC"}}</tool_') == [ToolArguments(0, 'TC"}')]


def test_an_answer_in_json_is_not_held_back_where_calls_are_json_too() -> None:
    parser = FORMATS["llama3_json"](NAMES)
    parser.feed('{"items": [1')
    assert parser.feed(", 2") == [Content(", 2")]


def test_only_what_may_be_a_marker_is_held_back() -> None:
    parser = FORMATS["hermes"](NAMES)
    assert parser.feed("a <too") == [Content("a")]
    assert parser.feed("th") == [Content(" <tooth")]


def test_calls_after_the_first_are_left_out_where_one_is_wanted() -> None:
    transcript = WHOLE[0]
    assert _meaning(_read(transcript.family, transcript.text, only_one=True)) == (transcript.content, transcript.calls[:1])


@pytest.mark.parametrize("transcript", [one for one in WHOLE if one.family == "mistral"], ids=["v3", "v11", "v13"])
def test_mistrals_calls_have_ids_of_nine_characters_which_its_templates_demand(transcript: Transcript) -> None:
    ids = [delta.id for delta in _read("mistral", transcript.text) if isinstance(delta, ToolCallStart)]
    assert all(len(id) == 9 and id.isalnum() for id in ids)


@pytest.mark.parametrize("transcript", WHOLE, ids=_ids(WHOLE))
def test_arguments_are_json(transcript: Transcript) -> None:
    for _, arguments in _meaning(_read(transcript.family, transcript.text))[1]:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% if tools %}# Tools <tool_call> {% endif %}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}", "deepseek_v3"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini"),
        ("<|start_of_role|>assistant<|tool_call|>", "granite"),
        ('Respond in the format {"name": function name, "parameters": ...} ipython', "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "hermes"),
    ],
)
def test_the_family_is_known_by_the_chat_template(template: str, family: str) -> None:
    assert find_format(template) == family

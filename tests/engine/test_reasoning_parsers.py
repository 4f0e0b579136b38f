"""What a reasoning model writes to itself, told apart from its answer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat.message import ChatMessage
from engine.chat.parser import RichText
from engine.reasoning.formats import FORMATS, find_format
from engine.reasoning.parser import ReasoningParser
from engine.tool_calls.formats import FORMATS as TOOL_FORMATS

END = 9  # the token of </think>


def _read(name: str, pieces: Iterable[str], is_open: bool = False) -> tuple[str, str]:
    parser = RichText(ReasoningParser(FORMATS[name], is_open, None), None, shows_reasoning=True)
    message = ChatMessage()
    for piece in pieces:
        message.add(parser.feed(piece, [0]))
    message.add(parser.finish())
    return message.reasoning, message.content


@pytest.mark.parametrize(
    ("name", "is_open", "text", "reasoning", "content"),
    [
        ("qwen3", False, "<think>\nOne, two.\n</think>\n\nThree.", "One, two.", "Three."),
        ("qwen3", False, "\n<think> a\n\nb </think>c", "a\n\nb", "c"),
        ("qwen3", False, "No thoughts, only </think> text", "", "No thoughts, only </think> text"),
        ("qwen3", True, "The beginning stands in the prompt.\n</think>\n\nSo.", "The beginning stands in the prompt.", "So."),
        ("qwen3", True, "<think>twice</think>x", "twice", "x"),
        ("qwen3", True, "cut off </thi", "cut off </thi", ""),
        ("qwen3", False, "<think></think>\n\nNothing thought", "", "Nothing thought"),
        ("qwen3", False, " leading space", "", " leading space"),
        ("deepseek_r1", True, "without a beginning</think>x", "without a beginning", "x"),
        ("granite", False, "Here is my thought process: a b Here is my response: c", "a b", "c"),
        ("mistral", False, "[THINK]a[/THINK]b", "a", "b"),
        ("qwen3", False, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ],
)
def test_reasoning_is_told_from_content_in_any_pieces(name: str, is_open: bool, text: str, reasoning: str, content: str) -> None:
    assert _read(name, [text], is_open) == (reasoning, content)
    assert _read(name, text, is_open) == (reasoning, content)
    for cut in range(len(text)):
        assert _read(name, [text[:cut], text[cut:]], is_open) == (reasoning, content)


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "bc"]), max_size=10), is_open=st.booleans()
)
def test_any_text_in_any_pieces_means_the_same(pieces: list[str], is_open: bool) -> None:
    assert _read("qwen3", pieces, is_open) == _read("qwen3", ["".join(pieces)], is_open)


@pytest.mark.parametrize("chunks", [[(0,), (1,), (2,), (END,), (3,), (4,)], [(0, 1), (2, END, 3), (4,)], [(0, 1, 2, END, 3, 4)]])
def test_reasoning_tokens_are_counted_up_to_the_one_that_ends_it_however_they_come(chunks: list[tuple[int, ...]]) -> None:
    texts = {0: "<think>", 1: "a", 2: "b", END: "</think>", 3: "c", 4: "d"}
    parser = ReasoningParser(FORMATS["qwen3"], False, END)
    for tokens in chunks:
        parser.feed("".join(texts[token] for token in tokens), tokens)
    assert parser.num_tokens == 4


def test_an_answer_without_reasoning_has_no_reasoning_tokens() -> None:
    parser = ReasoningParser(FORMATS["qwen3"], False, END)
    for token, text in enumerate(["\n", "Hel", "lo"]):
        parser.feed(text, [token])
    assert parser.num_tokens == 0


def test_a_call_within_reasoning_is_no_call_and_one_after_it_is() -> None:
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    parser = RichText(ReasoningParser(FORMATS["qwen3"], True, None), TOOL_FORMATS["hermes"](["time"]), shows_reasoning=True)
    message = ChatMessage()
    for character in f"I could write {call}.</think>\n{call}":
        message.add(parser.feed(character, [0]))
    message.add(parser.finish())
    assert message.reasoning == f"I could write {call}."
    assert (message.content, [one.name for one in message.tool_calls]) == ("", ["time"])


def test_reasoning_that_is_not_to_be_shown_is_counted_all_the_same() -> None:
    parser = RichText(ReasoningParser(FORMATS["qwen3"], True, END), None, shows_reasoning=False)
    message = ChatMessage()
    for text, token in (("a", 1), ("</think>", END), ("b", 2)):
        message.add(parser.feed(text, [token]))
    assert (message.reasoning, message.content, parser.reasoning_tokens) == ("", "b", 2)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<think>' }}...</think>", "qwen3"),
        ("[THINK]x[/THINK]", "mistral"),
        ("... Here is my response: ...", "granite"),
        ("plain", None),
    ],
)
def test_the_format_is_known_by_the_chat_template(template: str, name: str | None) -> None:
    assert find_format(template) == (None if name is None else FORMATS[name])


def test_the_prompt_says_whether_the_answer_begins_within_reasoning() -> None:
    qwen, deepseek = FORMATS["qwen3"], FORMATS["deepseek_r1"]
    assert qwen.is_open("<|im_start|>assistant\n<think>\n")
    assert not qwen.is_open("<|im_start|>assistant\n")
    assert not qwen.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert deepseek.is_open("<｜Assistant｜>")
    assert not deepseek.is_open("<｜Assistant｜></think>")

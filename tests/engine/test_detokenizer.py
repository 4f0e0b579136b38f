from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import IncrementalDetokenizer
from engine.loader import resolve_model
from engine.tokenizer import Tokenizer

# Loading it takes a twentieth of a second, and hypothesis wants no function-scoped fixtures.
TOKENIZER = resolve_model(None).tokenizer()
SAMPLES = [
    "The quick brown fox jumps over the lazy dog.",
    " leading and trailing  ",
    "日本語とภาษาไทย und größere Äpfel",
    "family: 👩‍👩‍👧‍👦 flag: 🇨🇭 skin: 👍🏽",
    "def f(x):\n\treturn {'a': x ** 2}\r\n",
]

# The vocabulary lacks 21 of the 256 bytes: some control characters, and what only unassigned characters are written with.
KNOWN_BYTES = {data[0] for data in map(TOKENIZER.token_bytes, range(TOKENIZER.vocab_size)) if len(data) == 1}
known_text = st.text(st.characters(codec="utf-8").filter(lambda character: KNOWN_BYTES.issuperset(character.encode())), max_size=40)


def stream(tokenizer: Tokenizer, groups: list[list[int]], skip_special_tokens: bool = False) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.append(group) for group in groups), detokenizer.finish()]


@given(st.lists(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=4), max_size=12))
def test_the_deltas_joined_are_the_bytes_of_all_tokens_decoded(groups: list[list[int]]) -> None:
    whole = b"".join(TOKENIZER.token_bytes(token_id) for group in groups for token_id in group)
    assert "".join(stream(TOKENIZER, groups)) == whole.decode(errors="replace")


@given(known_text, st.data())
def test_any_text_comes_back_whole_however_its_tokens_are_grouped(text: str, data: st.DataObject) -> None:
    ids = TOKENIZER.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    edges = [0, *cuts, len(ids)]
    groups = [ids[start:stop] for start, stop in itertools.pairwise(edges)]
    deltas = stream(TOKENIZER, groups)
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@pytest.mark.parametrize("text", SAMPLES)
def test_token_by_token_it_gives_what_the_tokenizer_decodes_at_once(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert "".join(stream(TOKENIZER, [[token_id] for token_id in ids])) == TOKENIZER.decode(ids) == text


def test_half_a_character_waits_for_its_other_half() -> None:
    ids = TOKENIZER.encode("👩")
    assert len(ids) > 1
    deltas = stream(TOKENIZER, [[token_id] for token_id in ids])
    assert deltas == [""] * (len(ids) - 1) + ["👩", ""]


def test_a_sequence_that_breaks_off_within_a_character_ends_with_a_replacement_character() -> None:
    ids = TOKENIZER.encode("a👩")[:-1]
    assert "".join(stream(TOKENIZER, [ids])) == "a\ufffd"


def test_special_tokens_are_left_out_only_when_asked() -> None:
    ids = TOKENIZER.encode("<|im_start|>user<|im_end|>")
    assert "".join(stream(TOKENIZER, [ids], skip_special_tokens=True)) == "user"
    assert "".join(stream(TOKENIZER, [ids], skip_special_tokens=False)) == "<|im_start|>user<|im_end|>"


def test_special_tokens_that_are_to_be_seen_are_not_left_out() -> None:
    ids = TOKENIZER.encode("<|im_start|>user<|im_end|>", add_special_tokens=False)
    assert IncrementalDetokenizer(TOKENIZER, skip_special_tokens=True, visible=ids[:1]).append(ids) == "<|im_start|>user"


def test_the_leading_space_of_a_continuation_is_kept() -> None:
    assert IncrementalDetokenizer(TOKENIZER).append(TOKENIZER.encode(" Paris")) == " Paris"

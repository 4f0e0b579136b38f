"""Tokens in answers: names, bytes, log probabilities, offsets."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.loader.resolve import resolve_model
from engine.outputs import Logprob, TokenLogprobs
from engine.tokenizer import Tokenizer
from server.render.tokens import CompletionLogprobs, TokenText, usage

TEXTS = st.text(max_size=30) | st.sampled_from(["naïve café", "日本語のテキスト", "🦑🦑", "🧑‍🚀", "a\u0301"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return resolve_model(None).tokenizer()


def _positions(token_ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(Logprob(token_id, -0.5, 1), (Logprob(token_id, -0.5, 1), Logprob(0, -2.0, 2))) for token_id in token_ids]


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_concatenated_bytes_are_the_text_to_the_byte(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assume(tokenizer.decode(token_ids) == text)  # the vocabulary lacks a few bytes of rare characters
    content = TokenText(tokenizer, False).chat_logprobs(_positions(token_ids))["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == text


def test_special_tokens_have_bytes_only_when_they_are_part_of_the_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_token_ids[0]
    assert TokenText(tokenizer, True).bytes_of(end) == b""
    assert TokenText(tokenizer, False).bytes_of(end) == b"<|im_end|>"
    assert TokenText(tokenizer, True, (end,)).bytes_of(end) == b"<|im_end|>"
    assert TokenText(tokenizer, True).name(end) == "<|im_end|>"


def test_a_part_of_a_character_is_named_by_its_bytes(tokenizer: Tokenizer) -> None:
    names = [TokenText(tokenizer, True).name(token_id) for token_id in tokenizer.encode("🦑", add_special_tokens=False)]
    assert len(names) > 1
    assert all(name.startswith("bytes:\\x") for name in names)


def test_each_position_has_its_own_logprob_and_the_k_most_probable(tokenizer: Tokenizer) -> None:
    position = TokenLogprobs(Logprob(5, -9.0, 77), (Logprob(6, -0.1, 1),))
    (entry,) = TokenText(tokenizer, True).chat_logprobs([position])["content"]
    assert entry["logprob"] == -9.0
    assert [one["logprob"] for one in entry["top_logprobs"]] == [-0.1]


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, cut=st.integers(0, 30))
def test_legacy_offsets_point_into_the_text_and_run_on_between_chunks(tokenizer: Tokenizer, text: str, cut: int) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    writer = CompletionLogprobs(TokenText(tokenizer, False), 1)
    offsets = []
    for part in (token_ids[:cut], token_ids[cut:]):
        offsets += writer.render(part, _positions(part))["text_offset"]
    decoded = tokenizer.decode(token_ids)
    for place, (token_id, offset) in enumerate(zip(token_ids, offsets, strict=True)):
        before = b"".join(tokenizer.token_bytes(one) for one in token_ids[:place])
        # Characters finished before it, as far as the text is valid; what is not shows as replacement characters.
        assert offset == len(codecs.getincrementaldecoder("utf-8")("replace").decode(before))
        name = TokenText(tokenizer, False).name(token_id)
        assert name.startswith("bytes:") or decoded[offset : offset + len(name)] == name


def test_legacy_top_logprobs_hold_the_chosen_token_too(tokenizer: Tokenizer) -> None:
    position = TokenLogprobs(Logprob(40, -9.0, 77), (Logprob(41, -0.1, 1),))
    text = TokenText(tokenizer, True)
    rendered = CompletionLogprobs(text, 1).render([40], [position])
    assert rendered["top_logprobs"] == [{text.name(41): -0.1, text.name(40): -9.0}]
    assert CompletionLogprobs(text, 0).render([40], [position])["top_logprobs"] is None


def test_the_first_prompt_token_has_no_logprob(tokenizer: Tokenizer) -> None:
    rendered = CompletionLogprobs(TokenText(tokenizer, True), 1).render([40], [None])
    assert rendered["token_logprobs"] == rendered["top_logprobs"] == [None]


def test_usage_adds_up() -> None:
    counted = usage(10, 5, 8)
    assert counted["total_tokens"] == 15
    assert counted["prompt_tokens_details"] == {"cached_tokens": 8}

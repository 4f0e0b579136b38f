from __future__ import annotations

import argparse
import copy
import json
import shutil
import typing
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import save_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.errors import ModelLoadError
from engine.loader import resolve_model
from engine.tokenizer import load_tokenizer

DEFAULT = resolve_model(None).tokenizer()
SAMPLES = [
    "The quick brown fox jumps over the lazy dog.",
    "don't I'll WE'VE they'd O'Brien's",
    "1234567890 3.14159 1,000,000 v2.0.1 0x1F4A9",
    "  leading, trailing   and \t\t tabs \n\n\n newlines\r\n  ",
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\tpass\n',
    "größere Äpfel, naïve café, Ærøskøbing",
    "日本語のテキスト 中文文本 한국어 텍스트",
    "العربية עברית ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🇨🇭 👍🏽 ☃ ♥",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|>text<|not_a_token|>",
    "https://example.org/a?b=c&d=%20#frag e-mail@example.com",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b"}}',
    "e\u0301 vs \u00e9 \u200b zero\u00a0width",
    "",
    " ",
    "a" * 300,
    "\u3042" * 50,
    "≤≥≠∑∫√∞ → ⇒",
]


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    path = resolve_model(None).path
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize("text", SAMPLES)
def test_the_default_models_tokens_are_those_of_transformers(reference: PreTrainedTokenizerFast, text: str) -> None:
    ids = DEFAULT.encode(text)
    assert ids == reference(text).input_ids
    assert DEFAULT.decode(ids) == reference.decode(ids)
    assert DEFAULT.decode(ids, skip_special_tokens=True) == reference.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module")
def reference_with_digits_apart(reference: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """transformers does not heed that the file asks for numbers to be cut apart first (tokenizer.ggml.pre is `smollm`).

    It matters only beside white space and for numbers that are no decimal digits, so SAMPLES come out the same.
    """
    changed = copy.deepcopy(reference)
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    changed.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return changed


@pytest.mark.parametrize("module", [json, argparse, typing], ids=lambda module: module.__name__)
def test_whole_files_of_source_tokenise_as_in_transformers(
    module: ModuleType, reference_with_digits_apart: PreTrainedTokenizerFast
) -> None:
    text = Path(module.__file__ or "").read_text()
    assert DEFAULT.encode(text) == reference_with_digits_apart(text).input_ids


@given(text=st.text(max_size=60))
def test_any_text_tokenises_as_in_transformers(reference_with_digits_apart: PreTrainedTokenizerFast, text: str) -> None:
    assert DEFAULT.encode(text) == reference_with_digits_apart(text).input_ids


def test_every_number_is_a_token_of_its_own_as_the_vocabulary_was_made() -> None:
    def is_number(character: str) -> bool:
        return unicodedata.category(character).startswith("N")

    for token_id in range(DEFAULT.vocab_size):
        text = DEFAULT.token_bytes(token_id).decode(errors="replace")
        if len(text) > 1 and not DEFAULT.is_special(token_id):
            assert not any(map(is_number, text)), text
    assert [DEFAULT.token_bytes(token_id) for token_id in DEFAULT.encode("no 42½")] == [b"no", b" ", b"4", b"2", "½".encode()]


def test_special_tokens_of_the_default_model() -> None:
    assert (DEFAULT.bos_token, DEFAULT.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert DEFAULT.bos_token_id == 1
    assert DEFAULT.eos_token_ids == (2, 0)
    assert DEFAULT.vocab_size == 49152
    assert DEFAULT.is_special(2)
    assert not DEFAULT.is_special(500)
    assert DEFAULT.token_bytes(2) == b"<|im_end|>"
    assert DEFAULT.id_to_token(2) == "<|im_end|>"
    assert DEFAULT.token_to_id("<|im_end|>") == 2
    assert DEFAULT.token_to_id("no such token") is None


@given(st.text(max_size=40))
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text_that_decodes(text: str) -> None:
    ids = DEFAULT.encode(text)
    assert b"".join(map(DEFAULT.token_bytes, ids)).decode(errors="replace") == DEFAULT.decode(ids)


def test_ids_beyond_the_vocabulary_stand_for_nothing() -> None:
    assert DEFAULT.token_bytes(10**6) == b""
    assert DEFAULT.id_to_token(10**6) == ""
    assert not DEFAULT.is_special(10**6)
    assert DEFAULT.decode([10**6]) == ""


def test_lone_surrogates_become_replacement_characters() -> None:
    assert set(DEFAULT.decode(DEFAULT.encode("a\ud83db"))) == {"a", "\ufffd", "b"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path)
    return tmp_path


def test_bos_is_added_once_even_if_the_text_brings_its_own(directory: Path) -> None:
    tokenizer = load_tokenizer(directory, [])
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [1, *plain]
    assert tokenizer.encode("<s>hi") == [1, *plain]
    assert tokenizer.encode("<s>hi", add_special_tokens=False) == [1, *plain]
    assert tokenizer.encode("<s><s>hi") == [1, 1, *plain]


def test_the_end_tokens_of_the_config_win_over_the_tokenizers_one(directory: Path) -> None:
    assert load_tokenizer(directory, []).eos_token_ids == (2,)
    assert load_tokenizer(directory, [2, 7]).eos_token_ids == (2, 7)


def test_truncation_stored_in_the_file_is_not_applied(directory: Path) -> None:
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(directory / "tokenizer.json"))
    assert len(load_tokenizer(directory, []).encode("ten letters")) == 12


def test_older_special_tokens_maps_are_read(directory: Path) -> None:
    shutil.move(directory / "tokenizer_config.json", directory / "special_tokens_map.json")
    assert load_tokenizer(directory, []).eos_token == "</s>"


def test_a_tokenizer_that_cannot_be_read_says_which_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path, [])
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"has only a SentencePiece tokenizer\.model"):
        load_tokenizer(tmp_path, [])
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelLoadError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path, [])


def test_tokenizers_whose_bytes_would_be_wrong_are_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="decode with WordPiece are not supported"):
        load_tokenizer(tmp_path, [])


def test_sentencepiece_tokens_are_spaces_and_bytes(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3} | {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, [])
    ids = tokenizer.encode("a é")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b" a", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "a é"

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GgufFile
from engine.loader.gguf_tokenizer import build_tokenizer
from engine.tokenizer import Tokenizer, bytes_of_byte_level_characters

SAMPLES = [
    "hello there",
    " hello  there ",
    "it's 12345 o'clock",
    "the\n\nend\t!",
    "naïve 日本 👍",
    "",
    " ",
    "<s>the</s> end",
    "THE'LL the're",
]
CONTROL, USER_DEFINED = 3, 4


def save(path: Path, kind: str, edit: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    edit(writer)
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def opened(path: Path) -> Tokenizer:
    return build_tokenizer(GgufFile(path))


def in_transformers(path: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def sentencepiece(writer: gguf.GGUFWriter) -> None:
    """A small SentencePiece vocabulary as llama.cpp's converter writes it: unigram-style scores, byte tokens, no merges."""
    words = [
        "▁",
        "e",
        "t",
        "h",
        "l",
        "o",
        "r",
        "a",
        "n",
        "d",
        "s",
        "i",
        "th",
        "he",
        "▁t",
        "▁the",
        "the",
        "ll",
        "hell",
        "▁hell",
        "▁hello",
        "re",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<think>"]
    order = ["th", "he", "▁t", "the", "▁the", "ll", "hell", "▁hell", "▁hello", "re"]
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(order.index(token)) if token in order else -1000.0 for token in tokens])
    writer.add_token_types([2, CONTROL, CONTROL, *[6] * 256, *[1] * len(words), USER_DEFINED])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def byte_level(pre: str) -> Callable[[gguf.GGUFWriter], None]:
    def edit(writer: gguf.GGUFWriter) -> None:
        alphabet = list(bytes_of_byte_level_characters())
        merges = ["t h", "Ġ t", "th e", "Ġt h", "1 2", "12 3", "3 4", "' s", "ĠĠ Ġ", "Ġ Ġ", "l l", "Ċ Ċ"]
        words = [merge.replace(" ", "") for merge in merges]
        tokens = ["<s>", "</s>", *alphabet, *words, "<think>"]
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL, CONTROL, *[1] * (len(alphabet) + len(words)), USER_DEFINED])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_add_bos_token(False)

    return edit


@pytest.mark.parametrize("text", SAMPLES)
def test_a_sentencepiece_vocabulary_tokenises_as_in_transformers(tmp_path: Path, text: str) -> None:
    path = save(tmp_path / "spm.gguf", "llama", sentencepiece)
    ours, reference = opened(path), in_transformers(path)
    assert ours.encode(text, add_special_tokens=False) == reference(text, add_special_tokens=False).input_ids
    ids = ours.encode(text)
    assert ids[0] == 1
    assert ours.decode(ids, skip_special_tokens=True) == reference.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module")
def spm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("spm") / "spm.gguf", "llama", sentencepiece)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("the lorand si\né👍"), max_size=30))
def test_sentencepiece_text_comes_back_whole(spm_path: Path, text: str) -> None:
    tokenizer = opened(spm_path)
    ids = tokenizer.encode(text, add_special_tokens=False)
    # One space in front is the vocabulary's own: a text that brings one is the same as a text that does not.
    assert tokenizer.decode(ids) == text.removeprefix(" ")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == (text if text.startswith(" ") or not text else " " + text)


def test_sentencepiece_begins_with_bos_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    def without_bos(writer: gguf.GGUFWriter) -> None:
        sentencepiece(writer)
        writer.add_add_bos_token(False)

    assert opened(save(tmp_path / "a.gguf", "llama", sentencepiece)).encode("the")[0] == 1
    assert 1 not in opened(save(tmp_path / "b.gguf", "llama", without_bos)).encode("the")


def test_no_space_is_put_in_front_when_the_file_says_so(tmp_path: Path) -> None:
    def without_space(writer: gguf.GGUFWriter) -> None:
        sentencepiece(writer)
        writer.add_add_space_prefix(False)

    tokenizer = opened(save(tmp_path / "a.gguf", "llama", without_space))
    assert [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode("the the")] == ["<s>", "the", "▁the"]
    tokenizer = opened(save(tmp_path / "b.gguf", "llama", sentencepiece))
    assert [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode("the the")] == ["<s>", "▁the", "▁the"]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_vocabularies_cut_text_as_in_transformers(tmp_path: Path, pre: str) -> None:
    path = save(tmp_path / "bpe.gguf", "gpt2", byte_level(pre))
    ours, reference = opened(path), in_transformers(path)
    for text in SAMPLES:
        assert ours.encode(text) == reference(text).input_ids, text
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["Ġ", "123", "4"]),  # longest merges over the whole number
        ("llama-bpe", ["Ġ", "123", "4"]),  # three digits at a time
        ("smollm", ["Ġ", "1", "2", "3", "4"]),  # every digit apart
        ("qwen2", ["Ġ", "1", "2", "3", "4"]),
    ],
)
def test_numbers_are_cut_by_the_rules_of_the_family(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    tokenizer = opened(save(tmp_path / "bpe.gguf", "gpt2", byte_level(pre)))
    assert [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode(" 1234", add_special_tokens=False)] == pieces


def test_llama_3_begins_with_bos_when_the_file_does_not_say(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        byte_level("llama-bpe")(writer)
        for values in writer.kv_data:
            values.pop("tokenizer.ggml.add_bos_token", None)

    assert opened(save(tmp_path / "bpe.gguf", "gpt2", edit)).encode("the")[0] == 0


def test_user_defined_tokens_are_whole_but_not_special(tmp_path: Path) -> None:
    tokenizer = opened(save(tmp_path / "bpe.gguf", "gpt2", byte_level("gpt-2")))
    ids = tokenizer.encode("a<think>b</s>")
    think, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</s>")
    assert think in ids
    assert end in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>b"
    assert tokenizer.is_special(1)
    assert think is not None
    assert not tokenizer.is_special(think)


def test_unknown_rules_of_cutting_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"by the rules 'klingon', which are not supported; supported are .*llama-bpe.*smollm"):
        opened(save(tmp_path / "bpe.gguf", "gpt2", byte_level("klingon")))


def test_other_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="tokenizer of kind 't5'; supported are 'gpt2' and 'llama'"):
        opened(save(tmp_path / "t5.gguf", "t5", sentencepiece))


def test_a_model_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="carries no tokenizer"):
        opened(save(tmp_path / "none.gguf", "none", lambda writer: None))


def test_a_vocabulary_that_repeats_itself_is_damaged(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["a", "b", "a"])
        writer.add_token_merges([])

    with pytest.raises(ModelLoadError, match="1 tokens of its vocabulary occur twice"):
        opened(save(tmp_path / "twice.gguf", "gpt2", edit))

"""Text to token ids and back, on the `tokenizers` library alone: importing transformers would cost the server seconds at start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ModelLoadError

_WORD_BOUNDARY = "▁"  # U+2581, how SentencePiece writes a space

# The library's calls for one text hold the GIL, which costs other threads about a millisecond for so many characters or tokens. Its
# calls for batches release it, but take 0.1 ms to begin.
_LONG = 4096


class Tokenizer:
    """A model's vocabulary and the rules that cut text into it.

    What is long is encoded and decoded without the GIL, so that other threads go on meanwhile.
    """

    vocab_size: int  # ids are in [0, vocab_size); the model's own table may be padded beyond
    bos_token: str | None  # these strings are what chat templates see
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # every token that ends a sequence; the first is that of `eos_token`

    def __init__(
        self, backend: tokenizers.Tokenizer, special_tokens: dict[str, str | None], eos_token_ids: Sequence[int] | None = None
    ) -> None:
        """`special_tokens` maps bos_token, eos_token, unk_token, pad_token to their strings. `eos_token_ids`: none means eos_token's."""
        self.backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {}
        self._text_to_bytes = _decoder_of(backend)
        self.vocab_size = 1 + max(
            (*self._added, backend.get_vocab_size(with_added_tokens=True) - 1, backend.get_vocab_size(with_added_tokens=False) - 1)
        )
        self.bos_token = special_tokens.get("bos_token")
        self.eos_token = special_tokens.get("eos_token")
        self.unk_token = special_tokens.get("unk_token")
        self.pad_token = special_tokens.get("pad_token")
        self.bos_token_id = None if self.bos_token is None else self.token_to_id(self.bos_token)
        if eos_token_ids is None:
            eos_id = None if self.eos_token is None else self.token_to_id(self.eos_token)
            eos_token_ids = () if eos_id is None else (eos_id,)
        self.eos_token_ids = tuple(eos_token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text; tokens that stand in it by name, such as `<|im_end|>`, are recognised.

        `add_special_tokens` adds what the model expects around a plain text, usually BOS. A text that starts with BOS by name is not
        given a second one. A rendered chat template brings its own special tokens: encode it with `add_special_tokens=False`.
        """
        # PyO3 turns a lone surrogate into an error; it has no UTF-8 form, so it stands for nothing a model could know.
        if not text.isascii():
            text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if len(text) <= _LONG:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            ids = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if add_special_tokens and self.bos_token and ids[:2] == [self.bos_token_id] * 2 and text.startswith(self.bos_token):
            del ids[0]
        return ids

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token as the vocabulary spells it, which has one or more for each byte or character of text."""
        return max(map(len, self.backend.get_vocab()))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence. SentencePiece drops the space in front of it; a continuation keeps it (see `token_bytes`)."""
        if len(token_ids) <= _LONG:
            return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return self.backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token adds to the running text: possibly a part of a character. Special tokens: their names.

        Ids without a token (padding rows of the model's table) add nothing.
        """
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def id_to_token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; an empty string for an id without one."""
        if token_id < 0:
            return ""
        return self.backend.id_to_token(token_id) or ""

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether a token is control rather than text: it is left out when special tokens are skipped."""
        added = self._added.get(token_id)
        return added is not None and added.special

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.content.encode()
        return self._text_to_bytes(self.id_to_token(token_id))


def load_tokenizer(directory: Path, eos_token_ids: Sequence[int]) -> Tokenizer:
    """The tokenizer of a Hugging Face directory. Raises ModelLoadError when there is none that can be read."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        if (directory / "tokenizer.model").is_file():
            raise ModelLoadError(
                f"{directory} has only a SentencePiece tokenizer.model: write a tokenizer.json with "
                f"transformers' AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained(...)"
            )
        raise ModelLoadError(f"{directory} has no tokenizer.json: copy it from the model's repository")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(backend, read_special_tokens(directory), eos_token_ids or None)


def read_special_tokens(directory: Path) -> dict[str, str | None]:
    """bos_token, eos_token, ... of tokenizer_config.json, or of the older special_tokens_map.json. Strings or {"content": string}."""
    special: dict[str, str | None] = {}
    for file_name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = directory / file_name
        if not path.is_file():
            continue
        try:
            settings: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from error
        if not isinstance(settings, dict):
            raise ModelLoadError(f"{path} must hold a JSON object, but holds a {type(settings).__name__}")
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = settings.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                special[name] = content
    return special


def bytes_of_byte_level_characters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _decoder_of(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """What turns a vocabulary's spelling of a token into its bytes, by the kinds of decoder the tokenizer is made of."""
    decoder = backend.decoder
    settings: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
    steps = [step["type"] for step in settings.get("decoders", [settings]) if "type" in step]
    if "ByteLevel" in steps:
        return _byte_level_decoder()
    if "Metaspace" in steps or "ByteFallback" in steps or "Replace" in steps:
        return _sentencepiece_bytes
    if steps in ([], ["Fuse"]):
        return str.encode
    raise ModelLoadError(f"tokenizers that decode with {', '.join(steps)} are not supported: byte-level and SentencePiece ones are")


def _byte_level_decoder() -> Callable[[str], bytes]:
    byte_of = bytes_of_byte_level_characters()

    def decode(token: str) -> bytes:
        try:
            return bytes(byte_of[character] for character in token)
        except KeyError:  # a token that is not spelled in the alphabet stands for itself
            return token.encode()

    return decode


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_WORD_BOUNDARY, " ").encode()

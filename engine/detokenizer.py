"""Tokens to text, one step at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from engine.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns the tokens of one sequence into text as they come, at a constant cost for each.

    A token stands for bytes, and a character may be spread over several tokens. Bytes that do not yet make a character wait; those
    that no longer can become U+FFFD, as `bytes.decode(errors="replace")` has it. The text continues a prompt, so a leading space
    is kept.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, visible: Collection[int] = ()) -> None:
        """`visible`: special tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._visible = visible
        self._decoder = _new_decoder(errors="replace")

    def append(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete."""
        tokenizer = self._tokenizer
        if self._skip_special_tokens:
            token_ids = [token_id for token_id in token_ids if not tokenizer.is_special(token_id) or token_id in self._visible]
        return self._decoder.decode(b"".join(map(tokenizer.token_bytes, token_ids)))

    def finish(self) -> str:
        """What is left at the end of the sequence: U+FFFD if it broke off within a character, else nothing."""
        return self._decoder.decode(b"", final=True)

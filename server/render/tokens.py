"""Single tokens in answers: their text, bytes and log probabilities, and the count of them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.outputs import Logprob, TokenLogprobs

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenText:
    """How tokens are written in answers."""

    tokenizer: Tokenizer
    skip_special_tokens: bool  # special tokens are then no part of the text, so they have no bytes
    visible_token_ids: tuple[int, ...] = ()  # special tokens that are part of it all the same

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to the output, to the byte."""
        if self.skip_special_tokens and self.tokenizer.is_special(token_id) and token_id not in self.visible_token_ids:
            return b""
        return self.tokenizer.token_bytes(token_id)

    def name(self, token_id: int) -> str:
        """The token as a string. One that is not whole characters is written `bytes:\\xe2\\x80`, as OpenAI does, so that names differ."""
        data = self.tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def chat_logprobs(self, positions: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """`logprobs` of a chat choice. Every token of `top` is one of the k that were asked for; the chosen one stands apart."""
        return {
            "content": [
                {**self._entry(position.chosen), "top_logprobs": [self._entry(one) for one in position.top]} for position in positions
            ],
            "refusal": None,
        }

    def prompt_logprobs(self, positions: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's form: for each prompt token but the first, an object from token ids to their log probabilities."""
        return [None if position is None else self._by_id(position) for position in positions]

    def _entry(self, one: Logprob) -> dict[str, Any]:
        return {"token": self.name(one.token_id), "logprob": one.logprob, "bytes": list(self.bytes_of(one.token_id))}

    def _by_id(self, position: TokenLogprobs) -> dict[str, Any]:
        return {
            str(one.token_id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": self.name(one.token_id)}
            for one in (position.chosen, *position.top)
        }


class CompletionLogprobs:
    """`logprobs` of a completion's choice, in the legacy form: parallel lists, and offsets that run on from chunk to chunk."""

    def __init__(self, text: TokenText, num_top: int) -> None:
        self.text = text
        self.num_top = num_top
        self._offset = 0  # characters finished so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def skip(self, text: str) -> None:
        """Let the offsets begin after a text whose tokens are not listed."""
        self._offset += len(text)

    def render(
        self, token_ids: Sequence[int], positions: Sequence[TokenLogprobs | None], first_bytes: bytes | None = None
    ) -> dict[str, Any]:
        """The lists for some further tokens. `first_bytes` replaces the bytes of the first token, where the text begins without it."""
        tokens: list[str] = []
        token_logprobs: list[float | None] = []
        top_logprobs: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for place, (token_id, position) in enumerate(zip(token_ids, positions, strict=True)):
            data = first_bytes if place == 0 and first_bytes is not None else self.text.bytes_of(token_id)
            tokens.append(self.text.name(token_id))
            token_logprobs.append(None if position is None else position.chosen.logprob)
            top_logprobs.append(None if position is None else self._top(position))
            # A token that goes on with a character begun before it stands where that character does.
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(data))
        top = top_logprobs if self.num_top else None
        return {"tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top, "text_offset": offsets}

    def _top(self, position: TokenLogprobs) -> dict[str, float]:
        # OpenAI: "the API will always return the logprob of the sampled token, so there may be up to logprobs+1 elements".
        return {self.text.name(one.token_id): one.logprob for one in (*position.top, position.chosen)}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's usage object. The prompt counts once however many sequences continue it."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }

"""What a caller gets back, step by step or at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from engine.chat.message import ChatMessage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason: TypeAlias = Literal["stop", "length", "repetition", "error", "abort"]


@dataclass(frozen=True)
class Logprob:
    """One token's log probability under the model's own distribution."""

    token_id: int
    logprob: float  # natural logarithm
    rank: int  # 1 is the most probable token


@dataclass(frozen=True)
class TokenLogprobs:
    """The log probabilities at one position."""

    chosen: Logprob  # of the token that stands there
    top: tuple[Logprob, ...]  # of the k most probable ones, best first; `chosen` may be among them


@dataclass
class CompletionOutput:
    """One sequence of a request."""

    index: int  # sample index, 0 to n - 1
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids, when asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it; None for EOS
    message: ChatMessage | None = None  # from `LLM.chat`: the text as content, reasoning and tool calls
    error: str | None = None  # with finish_reason "error": what went wrong with this sequence, and no other

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A request's outputs: what is new since the last one when streamed, all of it from `LLM.generate`.

    A streamed output holds only the sequences that have something new. A sequence's last output carries its finish_reason, and may
    have no text.
    """

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool  # every sequence of the request has ended
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # one for each prompt token, None for the first; given once
    first_scheduled: float | None = None  # with a sequence's first token: time.monotonic() when it stopped waiting
    prompt: str | None = None


@dataclass
class EmbeddingOutput:
    """A prompt's vector."""

    request_id: str
    prompt_token_ids: list[int]
    embedding: bytes  # float32, little-endian; empty when there is an error
    finish_reason: FinishReason
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    error: str | None = None  # with finish_reason "error"
    prompt: str | None = None
    finished: bool = True  # it comes whole

    @property
    def vector(self) -> NDArray[np.float32]:
        """[dimensions]"""
        import numpy as np  # not above: it would cost the API process a tenth of a second at its start

        return np.frombuffer(self.embedding, "<f4")

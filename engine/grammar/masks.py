"""The tokens that matchers rule out, for many at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from engine.device_copy import to_device

_FEW = 16  # matchers that take turns: a mask takes some microseconds, and waking other threads for it as many as ten of them


@dataclass(frozen=True)
class TokenMask:
    """What may come next, as whichever list is shorter: the tokens that are out, or those that alone are in."""

    token_ids: NDArray[np.int64]
    are_allowed: bool

    def apply(self, row: torch.Tensor) -> None:
        """Rule out the others' logits in a row [vocab_size]."""
        token_ids = to_device(self.token_ids, row.device)
        if self.are_allowed:
            kept = row.index_select(0, token_ids)
            row.fill_(-torch.inf).index_copy_(0, token_ids, kept)
        else:
            row.index_fill_(0, token_ids, -torch.inf)


def token_masks(matchers: list[LLMatcher], vocab_size: int) -> list[TokenMask]:
    """The same as lists of tokens. Most masks leave few tokens or nearly all, and so cost little to apply."""
    masks = []
    for masked in masked_tokens(matchers, vocab_size):
        are_allowed = 2 * np.count_nonzero(masked) > vocab_size
        masks.append(TokenMask(np.flatnonzero(masked != are_allowed), bool(are_allowed)))
    return masks


def masked_tokens(matchers: list[LLMatcher], vocab_size: int) -> NDArray[np.bool_]:
    """[len(matchers), vocab_size]: which tokens may not come next. The GIL is free meanwhile, and several matchers work in parallel.

    A matcher may be in an error state afterwards; its row means nothing then.
    """
    bits = np.zeros((len(matchers), -(-vocab_size // 32)), np.int32)
    if len(matchers) <= _FEW:
        for i, matcher in enumerate(matchers):
            fill_next_token_bitmask(matcher, bits, i)
    else:
        fill_next_token_bitmask_par(_threads(), [(matcher, i) for i, matcher in enumerate(matchers)], bits)
    return np.unpackbits(~bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(np.bool_)


@cache
def _threads() -> LLExecutor:
    return LLExecutor()

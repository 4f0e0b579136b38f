"""The tokens that matchers rule out, for many at once."""

from __future__ import annotations

from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray


def masked_tokens(matchers: list[LLMatcher], vocab_size: int) -> NDArray[np.bool_]:
    """[len(matchers), vocab_size]: which tokens may not come next. The GIL is free meanwhile, and several matchers work in parallel.

    A matcher may be in an error state afterwards; its row means nothing then.
    """
    bits = np.zeros((len(matchers), -(-vocab_size // 32)), np.int32)
    if len(matchers) == 1:
        fill_next_token_bitmask(matchers[0], bits)
    elif matchers:
        fill_next_token_bitmask_par(_threads(), [(matcher, i) for i, matcher in enumerate(matchers)], bits)
    return np.unpackbits(~bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(np.bool_)


@cache
def _threads() -> LLExecutor:
    return LLExecutor()

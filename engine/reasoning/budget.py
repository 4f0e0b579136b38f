"""A bound on the tokens of reasoning."""

from __future__ import annotations

import msgspec

from engine.errors import InvalidRequestError

MAX_MARKER_TOKENS = 64


class ThinkingBudget(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """After so many tokens of reasoning, the tokens that end it are generated, if it has not ended by itself."""

    max_tokens: int
    begin_token_ids: tuple[int, ...]  # what begins reasoning
    end_token_ids: tuple[int, ...]  # what ends it
    is_open: bool = False  # the prompt ends within reasoning

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for a negative budget, and without markers."""
        if self.max_tokens < 0:
            raise InvalidRequestError(
                f"thinking_token_budget must not be negative, but is {self.max_tokens}", param="thinking_token_budget"
            )
        for ids in (self.begin_token_ids, self.end_token_ids):
            if not 1 <= len(ids) <= MAX_MARKER_TOKENS:
                raise InvalidRequestError(f"a marker of reasoning has 1 to {MAX_MARKER_TOKENS} tokens", param="thinking_token_budget")

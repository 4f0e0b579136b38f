"""How the hidden states of a prompt become one vector."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from engine.errors import InvalidRequestError

Pooling: TypeAlias = Literal["mean", "last"]


class PoolingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The settings of one request for an embedding. The hidden states are those after the model's last norm."""

    pooling: Pooling | None = None  # mean over all tokens, or the last token's; None: as the model says
    dimensions: int | None = None  # keep so many leading ones (Kusupati et al., 2022, Matryoshka); None: all
    normalize: bool = True  # to length 1, after cutting

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for dimensions that no model has."""
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequestError(f"dimensions must be at least 1, but is {self.dimensions}", param="dimensions")

    @property
    def needs_every_token(self) -> bool:
        """Whether all of the prompt must be computed in one go, since cached keys and values bring no hidden states."""
        return self.pooling == "mean"

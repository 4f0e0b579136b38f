"""How the token of each row of logits is drawn, and how probable tokens are: what `sample` is told, and what `logprobs` tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

NUM_WORDS = 7  # of 64 bits, for each row: `DrawSettings.pack`


@dataclass(frozen=True)
class DrawSettings:
    """One entry for each row; the arrays are in host memory and contiguous."""

    temperature: NDArray[np.float32]  # divides the logits; 0: the token with the largest logit is taken, and nothing below matters
    log_min_p: NDArray[np.float32]  # keep tokens whose tempered logit is at least the largest plus this; -inf keeps all
    top_k: NDArray[np.int32]  # keep the k largest, and equals of the least of them; 0 keeps all
    top_p: NDArray[np.float64]  # keep the fewest most probable tokens that reach this share, and equals of the least; 1 keeps all
    seeds: NDArray[np.uint64]  # the draw is `kernels.random.uniform(seed, sample_index, position)`
    sample_indices: NDArray[np.uint64]
    positions: NDArray[np.uint64]

    def pack(self, words: NDArray[np.int64]) -> None:
        """Write all settings into words [num_rows, NUM_WORDS], so that one copy takes them to a device; floats as the bits of float64."""
        floats = words.view(np.float64)
        floats[:, 0], floats[:, 1], floats[:, 2], words[:, 3] = self.temperature, self.log_min_p, self.top_p, self.top_k
        for column, values in enumerate((self.seeds, self.sample_indices, self.positions), start=4):
            words[:, column] = values.view(np.int64)


@dataclass(frozen=True)
class Draws:
    """For a pass that draws its tokens itself: what it is told, and where it leaves them. All lie on the device and never move."""

    counts: torch.Tensor  # [3] int32: sequences, logits that are wanted, and rows of these, from the first, of which a token is drawn
    settings: torch.Tensor  # [max_num_seqs, NUM_WORDS] int64, `DrawSettings.pack`
    slots: torch.Tensor  # [max_num_seqs] int32, whose token each row gives
    token_ids: torch.Tensor  # [max_num_seqs] int64, the result: of each row, as `Ops.sample` gives it
    last_token_ids: torch.Tensor  # [num_slots] int32, the result: the token drawn last for each slot; 0 where none could be


@dataclass(frozen=True)
class RowLogprobs:
    """Log probabilities (natural) of each row of logits. A row that holds a NaN or whose largest logit is not finite has NaNs, and ids and
    ranks as if its logits were all equal.
    """

    chosen: NDArray[np.float32]  # [num_rows] of the token asked for
    ranks: NDArray[np.int64]  # [num_rows] 1 plus the tokens with a larger logit
    top_ids: NDArray[np.int32]  # [num_rows, most] best first, and of equal logits the smaller id first
    top_ranks: NDArray[np.int32]  # [num_rows, most]
    top_values: NDArray[np.float32]  # [num_rows, most]; row r's first num_top[r] entries count, the others are anything

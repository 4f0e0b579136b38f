"""How the token of each row of logits is drawn: what the operation `sample` is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

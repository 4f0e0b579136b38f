"""Counter-based random numbers: a draw is a function of its counter, so there is no state to carry or to lose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10 (Salmon et al., 2011, section 3.3): counter [4, n] and key [2, n] of 32-bit words -> [4, n] of 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> _SHIFT) ^ c1 ^ k0, product1 & _LOW, (product0 >> _SHIFT) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & _LOW, (k1 + np.uint64(_WEYL[1])) & _LOW
    return np.stack((c0, c1, c2, c3))


def uniform(seeds: NDArray[np.uint64], sample_indices: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, sample index, position); all arguments are [n]."""
    zeros = np.zeros_like(positions)
    words = philox4x32(
        np.stack((positions & _LOW, positions >> _SHIFT, sample_indices & _LOW, zeros)), np.stack((seeds & _LOW, seeds >> _SHIFT))
    )
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    return (high.astype(np.float64) * 67108864.0 + low.astype(np.float64)) * (1.0 / 9007199254740992.0)

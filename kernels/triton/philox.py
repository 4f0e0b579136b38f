"""The random numbers of `kernels.random`, on the device: the same bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform(seed, sample_index, position):
    """`kernels.random.uniform` of three int64 (the bits of uint64): float64 in [0, 1), by Philox4x32-10 (Salmon et al., 2011)."""
    c0, c1 = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    c2, c3 = sample_index.to(tl.uint32), tl.full([], 0, tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = multiply(c0, 0xD2511F53)
        high1, low1 = multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return ((c0 >> 5).to(tl.float64) * 67108864.0 + (c1 >> 6).to(tl.float64)) * (1.0 / 9007199254740992.0)


@triton.jit
def multiply(word, factor):
    """The high and the low word of a product of two of 32 bits."""
    product = word.to(tl.uint64) * factor
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)

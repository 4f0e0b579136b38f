from __future__ import annotations

import numpy as np
import pytest

from kernels.random import philox4x32, uniform


# Random123's kat_vectors, philox4x32 with 10 rounds.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array([counter], np.uint64).T, np.array([key], np.uint64).T)
    assert words[:, 0].tolist() == expected


def draws(n: int, seed: int = 1, sample_index: int = 0) -> np.ndarray:
    return uniform(np.full(n, seed, np.uint64), np.full(n, sample_index, np.uint64), np.arange(n, dtype=np.uint64))


def test_draws_are_spread_evenly_over_zero_to_one() -> None:
    numbers = draws(100_000)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    chi_square = ((counts - 2000.0) ** 2 / 2000.0).sum()
    assert chi_square < 85.4  # 49 degrees of freedom, p = 0.001


def test_neighbouring_seeds_sample_indices_and_positions_are_unrelated() -> None:
    base = draws(20_000)
    for other in (draws(20_000, seed=2), draws(20_000, sample_index=1), np.roll(base, 1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.03
        assert not np.any(base == other)


def test_a_draw_does_not_depend_on_the_others_beside_it() -> None:
    seeds, indices, positions = np.arange(10, dtype=np.uint64), np.arange(10, dtype=np.uint64) % 3, np.arange(10, dtype=np.uint64) * 7
    together = uniform(seeds, indices, positions)
    alone = [uniform(seeds[i : i + 1], indices[i : i + 1], positions[i : i + 1])[0] for i in range(10)]
    assert together.tolist() == alone


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = np.array([5, 5 + 2**32, 5 + 2**63], np.uint64)
    numbers = uniform(seeds, np.zeros(3, np.uint64), np.zeros(3, np.uint64))
    assert len(set(numbers.tolist())) == 3

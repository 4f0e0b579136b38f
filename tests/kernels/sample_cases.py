"""Rows of logits and settings to draw from them, for the tests of every set's `sample` and `logprobs`."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from kernels.sampling import DrawSettings

NEVER = np.float32(-np.inf)


def make_settings(num_rows: int, random: np.random.Generator) -> DrawSettings:
    """All filters, alone and together, with values that keep nearly nothing and nearly all."""
    return DrawSettings(
        temperature=random.choice([0.0, 0.5, 1.0, 2.5], num_rows).astype(np.float32),
        log_min_p=random.choice([NEVER, NEVER, np.log(1e-6), np.log(0.01), np.log(0.5), 0.0], num_rows).astype(np.float32),
        top_k=random.choice([0, 0, 1, 2, 50, 1000, 10**6], num_rows).astype(np.int32),
        top_p=random.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.01], num_rows),
        seeds=random.integers(0, 2**64, num_rows, np.uint64),
        sample_indices=random.integers(0, 2**32, num_rows, np.uint64),
        positions=random.integers(0, 2**40, num_rows, np.uint64),
    )


def make_logits(num_rows: int, vocab_size: int, random: np.random.Generator) -> torch.Tensor:
    """Flat and peaked rows, with and without equals and masked tokens."""
    values = random.normal(0.0, 1.0, (num_rows, vocab_size)).astype(np.float32) * random.choice([0.01, 1.0, 3.0, 30.0], (num_rows, 1))
    rounded = random.random(num_rows) < 0.3
    values[rounded] = values[rounded].round()
    masked = random.random((num_rows, vocab_size)) < random.choice([0.0, 0.0, 0.5, 0.99], (num_rows, 1))
    masked[:, random.integers(vocab_size)] = False
    values[masked] = -np.inf
    return torch.from_numpy(values.astype(np.float32))


def make_odd_logits(num_rows: int, vocab_size: int, random: np.random.Generator) -> torch.Tensor:
    """Rows that a search for a threshold could trip over: equals, signs of zero, subnormal and huge numbers, steep and sorted ones."""
    sparse = np.where(random.random(vocab_size) < 0.01, 5.0, -np.inf)
    sparse[random.integers(vocab_size)] = 5.0
    kinds = [
        np.full(vocab_size, 3.25),
        random.choice([1.0, 4.0], vocab_size),
        random.choice([-0.0, 0.0], vocab_size),
        random.normal(0.0, 1e-40, vocab_size),
        random.normal(0.0, 1e30, vocab_size),
        random.choice([1.0, -1.0], vocab_size) * 10.0 ** random.uniform(-40, 4, vocab_size),
        np.nextafter(np.float32(7.0), np.float32(8.0)) + random.integers(0, 3, vocab_size) * np.float32(2.0**-21),
        np.linspace(-30.0, 10.0, vocab_size),
        np.linspace(10.0, -30.0, vocab_size),
        np.where(np.arange(vocab_size) == vocab_size // 2, 0.0, -24.3 + random.normal(0.0, 0.05, vocab_size)),  # about half a unit each
        sparse,
    ]
    return torch.from_numpy(np.stack([kinds[row % len(kinds)] for row in range(num_rows)]).astype(np.float32))


def select(settings: DrawSettings, rows: list[int]) -> DrawSettings:
    return DrawSettings(**{field.name: getattr(settings, field.name)[rows] for field in dataclasses.fields(settings)})

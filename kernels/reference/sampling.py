"""`sample` in plain PyTorch, for any device: thresholds are values, not places in a sort, and sums exact, so a row's result is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.random import uniform
from kernels.sampling import DrawSettings

_NUCLEUS_GUESS = 256  # most nuclei are smaller, and finding the largest 256 values is much cheaper than sorting a vocabulary


def sample(logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
    """The contract is that of `kernels.ops.Ops.sample`."""
    token_ids = logits.argmax(-1)
    largest = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    random_rows = np.flatnonzero(settings.temperature > 0)
    if random_rows.size:
        rows = torch.from_numpy(random_rows).to(logits.device)
        token_ids[rows] = _draw(logits[rows], settings, random_rows)
    return torch.where(largest.isfinite(), token_ids, -1).cpu().numpy()


def _draw(logits: torch.Tensor, settings: DrawSettings, rows: NDArray[np.int64]) -> torch.Tensor:
    """One token for each row of logits, whose settings are those of `rows`."""

    def column(values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device).unsqueeze(1)

    logits = logits / column(settings.temperature[rows])  # a copy, so that the filters may work in place
    log_min_p, top_k, top_p = settings.log_min_p[rows], settings.top_k[rows].astype(np.int64), settings.top_p[rows]
    if np.isfinite(log_min_p).any():
        _keep_from(logits, logits.amax(-1, keepdim=True) + column(log_min_p))
    limited = np.flatnonzero((top_k > 0) & (top_k < logits.shape[1]))
    if limited.size:
        part = torch.from_numpy(limited).to(logits.device)
        logits[part] = _keep_top_k(logits[part], column(top_k[limited]))
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()  # of the softmax, not normalised
    # On CUDA the order of a sum depends on the number of rows. Sums in float64 of 2**19 multiples of 2**-34 up to 1 have no rounding.
    weights = weights.mul_(2.0**34).round_().mul_(2.0**-34)
    limited = np.flatnonzero(top_p < 1.0)
    if limited.size:
        part = torch.from_numpy(limited).to(logits.device)
        weights[part] = _keep_top_p(weights[part], column(top_p[limited]))
    return _invert_cdf(weights, column(uniform(settings.seeds[rows], settings.sample_indices[rows], settings.positions[rows])))


def _keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Mask all below the k-th largest; equals of it are kept, so the order of a sort cannot matter. top_k is [num_rows, 1]."""
    largest = _largest(logits, int(top_k.max()))
    return _keep_from(logits, largest.gather(1, top_k - 1))


def _keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all below the least probable token of the nucleus (Holtzman et al., 2020, section 3.1); equals of it are kept."""
    needed = weights.sum(-1, keepdim=True, dtype=torch.float64) * top_p
    threshold, found = _nucleus_threshold(_largest(weights, min(_NUCLEUS_GUESS, weights.shape[1])), needed)
    if not bool(found.all()):
        rows = (~found.squeeze(1)).nonzero().squeeze(1)
        threshold[rows], _ = _nucleus_threshold(_largest(weights[rows], weights.shape[1]), needed[rows])
    return weights.masked_fill_(weights < threshold, 0.0)


def _keep_from(logits: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill_(logits < threshold, float("-inf"))


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest of each row, largest first."""
    if values.device.type != "cpu":
        return values.topk(k, dim=-1).values
    # NumPy selects and sorts with vector instructions, PyTorch's CPU kernels do not: 0.03 against 0.3 ms for a vocabulary of 49,152.
    negative = np.negative(values.numpy())
    if k < values.shape[1]:
        negative = np.partition(negative, k - 1, axis=-1)[:, :k]
    negative.sort(axis=-1)
    return torch.from_numpy(np.negative(negative))


def _nucleus_threshold(ordered: torch.Tensor, needed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest weight of each row's nucleus, and whether the given ones (largest first) were enough to hold it."""
    reached = ordered.cumsum(-1, dtype=torch.float64)
    size = ((reached - ordered) < needed).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(1, size - 1), reached[:, -1:] >= needed


def _invert_cdf(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The token in whose share of the cumulative weights each number in [0, 1) falls; numbers is [num_rows, 1]."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    targets = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)

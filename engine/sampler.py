"""Sampler: logits to token ids and log probabilities, for the whole batch at once.

Each row's result depends on that row alone: thresholds are values, not places in a sort, and the one draw of a token is a function of
(seed, sample index, position).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.outputs import Logprob, TokenLogprobs
from engine.step import NewSequence
from kernels.random import uniform

_NUCLEUS_GUESS = 256  # most nuclei are smaller, and finding the largest 256 values is much cheaper than sorting a vocabulary


@dataclass(frozen=True)
class Sampled:
    token_ids: NDArray[np.int64]  # [num_rows]
    logprobs: list[TokenLogprobs | None]  # for each row, None where not asked for


class Sampler:
    """Keeps the sampling settings of each slot in arrays, so that a step gathers them without a loop over sequences."""

    def __init__(self, num_slots: int, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._temperature = np.zeros(num_slots, np.float32)  # 0: greedy
        self._top_k = np.zeros(num_slots, np.int64)  # 0: all
        self._top_p = np.ones(num_slots, np.float64)
        self._min_p = np.zeros(num_slots, np.float32)
        self._seed = np.zeros(num_slots, np.uint64)
        self._sample_index = np.zeros(num_slots, np.uint64)
        self._num_logprobs = np.full(num_slots, -1, np.int64)  # -1: none wanted
        self._first_stop_position = np.zeros(num_slots, np.int64)  # stop tokens are masked at positions before it
        self._stop_token_ids: dict[int, list[int]] = {}  # by slot, where min_tokens asks for a mask

    def admit(self, new: NewSequence) -> None:
        """Take over the settings of a sequence that got a slot."""
        slot, params = new.slot, new.params
        self._temperature[slot] = 0.0 if params.greedy else params.temperature
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seed[slot] = new.seed & 0xFFFFFFFFFFFFFFFF
        self._sample_index[slot] = new.sample_index
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._first_stop_position[slot] = new.num_prompt_tokens + params.min_tokens if params.min_tokens else 0
        if params.min_tokens:
            eos = () if params.ignore_eos else self._eos_token_ids
            self._stop_token_ids[slot] = sorted({*eos, *params.stop_token_ids})

    def sample(self, logits: torch.Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Sampled:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from row r of the logits [num_rows, vocab_size].

        The logits may be overwritten.
        """
        num_logprobs = self._num_logprobs[slots]
        wanted = np.flatnonzero(num_logprobs >= 0)
        # Before any stage changes the logits: log probabilities are of the model's own distribution.
        own = logits[torch.from_numpy(wanted).to(logits.device)].log_softmax(-1) if wanted.size else None
        self._mask_stop_tokens(logits, slots, positions)

        temperature = self._temperature[slots]
        token_ids = logits.argmax(-1)
        random_rows = np.flatnonzero(temperature > 0)
        if random_rows.size:
            rows = torch.from_numpy(random_rows).to(logits.device)
            token_ids[rows] = self._draw(logits[rows], slots[random_rows], positions[random_rows])
        chosen = token_ids.cpu().numpy()

        logprobs: list[TokenLogprobs | None] = [None] * len(slots)
        if own is not None:
            for row, entry in zip(wanted, gather_logprobs(own, chosen[wanted], num_logprobs[wanted]), strict=True):
                logprobs[row] = entry
        return Sampled(chosen, logprobs)

    def _mask_stop_tokens(self, logits: torch.Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        for row in np.flatnonzero(positions < self._first_stop_position[slots]):
            stop_token_ids = self._stop_token_ids[int(slots[row])]
            if len(stop_token_ids) < logits.shape[1]:
                logits[row, stop_token_ids] = float("-inf")

    def _draw(self, logits: torch.Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> torch.Tensor:
        """One token for each row, after temperature, min_p, top_k and top_p."""

        def column(values: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(values).to(logits.device).unsqueeze(1)

        logits = logits / column(self._temperature[slots])  # a copy, so that the stages may work in place
        min_p, top_k, top_p = self._min_p[slots], self._top_k[slots], self._top_p[slots]
        if (min_p > 0).any():
            # log 0 is -inf: rows without min_p keep everything
            _keep_from(logits, logits.amax(-1, keepdim=True) + column(min_p).log())
        limited = np.flatnonzero((top_k > 0) & (top_k < logits.shape[1]))
        if limited.size:
            rows = torch.from_numpy(limited).to(logits.device)
            logits[rows] = _keep_top_k(logits[rows], column(top_k[limited]))
        limited = np.flatnonzero(top_p < 1.0)
        if limited.size:
            rows = torch.from_numpy(limited).to(logits.device)
            logits[rows] = _keep_top_p(logits[rows], column(top_p[limited]))
        draws = uniform(self._seed[slots], self._sample_index[slots], positions.astype(np.uint64))
        return _invert_cdf(logits.softmax(-1), column(draws))


def gather_logprobs(logprobs: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]) -> list[TokenLogprobs]:
    """For each row of logprobs [num_rows, vocab_size]: the entry of `token_ids`, its rank, and the `num_top` largest ones.

    Equals have one rank, and of them the smaller token id comes first.
    """
    num_top = np.minimum(num_top, logprobs.shape[1])
    chosen = logprobs.gather(1, torch.from_numpy(token_ids).to(logprobs.device).unsqueeze(1))
    ranks = ((logprobs > chosen).sum(-1) + 1).tolist()
    entries = []
    for best, rank, token_id, logprob in zip(_top(logprobs, num_top), ranks, token_ids.tolist(), chosen.squeeze(1).tolist(), strict=True):
        top: list[Logprob] = []
        for place, (value, top_id) in enumerate(best, start=1):
            top.append(Logprob(top_id, value, top[-1].rank if top and top[-1].logprob == value else place))
        entries.append(TokenLogprobs(Logprob(token_id, logprob, rank), tuple(top)))
    return entries


def _top(logprobs: torch.Tensor, num_top: NDArray[np.int64]) -> list[list[tuple[float, int]]]:
    """The `num_top` largest of each row as (value, token id), best first."""
    most = int(num_top.max(initial=0))
    if most == 0:
        return [[] for _ in num_top]
    largest = logprobs.topk(most, dim=-1)
    counts = torch.from_numpy(num_top).to(logprobs.device).unsqueeze(1)
    least = largest.values.gather(1, (counts - 1).clamp(min=0))
    # Which of several equals topk gives, and in what order, depends on the other rows' k.
    is_crowded = ((logprobs >= least).sum(-1, keepdim=True) > counts).squeeze(1).tolist()
    rows = []
    for row, (values, ids) in enumerate(zip(largest.values.tolist(), largest.indices.tolist(), strict=True)):
        if is_crowded[row] and num_top[row]:
            candidates = (logprobs[row] >= least[row]).nonzero().squeeze(1)
            values, ids = logprobs[row, candidates].tolist(), candidates.tolist()
        rows.append(sorted(zip(values, ids, strict=True), key=lambda entry: (-entry[0], entry[1]))[: num_top[row]])
    return rows


def _keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Mask all below the k-th largest; equals of it are kept, so the order of a sort cannot matter. top_k is [num_rows, 1]."""
    largest = _largest(logits, int(top_k.max()))
    return _keep_from(logits, largest.gather(1, top_k - 1))


def _keep_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Mask all below the least probable token of the nucleus (Holtzman et al., 2020, section 3.1); equals of it are kept."""
    probabilities = logits.softmax(-1)
    threshold, found = _nucleus_threshold(_largest(probabilities, min(_NUCLEUS_GUESS, logits.shape[1])), top_p)
    if not bool(found.all()):
        rows = (~found.squeeze(1)).nonzero().squeeze(1)
        threshold[rows], _ = _nucleus_threshold(_largest(probabilities[rows], logits.shape[1]), top_p[rows])
    return logits.masked_fill_(probabilities < threshold, float("-inf"))


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


def _nucleus_threshold(ordered: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest probability of each row's nucleus, and whether the given ones (largest first) were enough to hold it."""
    reached = ordered.cumsum(-1, dtype=torch.float64)
    size = ((reached - ordered) < top_p).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(1, size - 1), reached[:, -1:] >= top_p


def _invert_cdf(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token in whose share of the cumulative distribution each draw [num_rows, 1] falls."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    targets = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)

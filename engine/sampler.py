"""Sampler: logits to token ids and log probabilities, for the whole batch at once.

Each row's result depends on that row alone, and the one draw of a token is a function of (seed, sample index, position).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.device_copy import to_device
from engine.grammar.compiler import GrammarCompiler
from engine.logits_processors import LogitsProcessorRegistry
from engine.outputs import Logprob, TokenLogprobs
from engine.stages import EarlyStage, LogitsRows, build_stages
from engine.step import NewSequence
from kernels.ops import Ops
from kernels.sampling import DrawSettings

_NOTHING_LEFT = "no token can be drawn: the request's own settings exclude them all, or the model's logits are not finite"


@dataclass(frozen=True)
class Sampled:
    token_ids: NDArray[np.int64]  # [num_rows]; any token where there is an error
    logprobs: list[TokenLogprobs | None]  # for each row, None where not asked for
    errors: dict[int, str] = field(default_factory=dict)  # by row: why no token could be drawn


@dataclass(frozen=True)
class ReadyLogits:
    """Rows of logits to draw from, and what is wanted once that is done."""

    logits: torch.Tensor  # [num_rows, vocab_size] float32, changed by all stages
    own: torch.Tensor | None  # [num_wanted, vocab_size] float32, the model's own for the rows whose log probabilities are wanted
    wanted: NDArray[np.int64]  # [num_wanted] these rows
    num_logprobs: NDArray[np.int64]  # [num_wanted] how many for each
    errors: dict[int, str]  # by row


class Sampler:
    """Keeps the sampling settings of each slot in arrays, so that a step gathers them without a loop over sequences.

    A stage that no scheduled row uses costs nothing but a look at a flag for each row.
    """

    def __init__(
        self,
        ops: Ops,
        token_ids: NDArray[np.int32],
        eos_token_ids: Iterable[int],
        grammars: GrammarCompiler | None = None,
        processors: LogitsProcessorRegistry | None = None,
    ) -> None:
        """`token_ids` [num_slots, max_len] is the worker's table: when a row is sampled, it holds all tokens before the row's position."""
        num_slots = token_ids.shape[0]
        self._ops = ops
        self._stages = build_stages(token_ids, eos_token_ids, grammars, processors)
        self._early_stages = [(i, stage) for i, stage in enumerate(self._stages) if isinstance(stage, EarlyStage)]
        self._uses_stage = np.zeros((num_slots, len(self._stages)), np.bool_)
        self._temperature = np.zeros(num_slots, np.float32)  # 0: greedy
        self._log_min_p = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float64)
        self._seed = np.zeros(num_slots, np.uint64)
        self._sample_index = np.zeros(num_slots, np.uint64)
        self._num_logprobs = np.full(num_slots, -1, np.int64)  # -1: none wanted
        self._gathered: tuple[NDArray[np.int64], DrawSettings] | None = None  # of the latest step's slots, until one is taken anew

    def admit(self, new: NewSequence) -> None:
        """Take over the settings of a sequence that got a slot."""
        slot, params = new.slot, new.params
        self._gathered = None
        self._temperature[slot] = 0.0 if params.greedy else params.temperature
        self._log_min_p[slot] = np.log(np.float32(params.min_p)) if params.min_p > 0 else -np.inf
        self._top_k[slot] = params.top_k
        self._top_p[slot] = params.top_p
        self._seed[slot] = new.seed & 0xFFFFFFFFFFFFFFFF
        self._sample_index[slot] = new.sample_index
        num_logprobs = params.logprobs if new.num_candidates is None else new.num_candidates
        self._num_logprobs[slot] = -1 if num_logprobs is None else num_logprobs
        self._uses_stage[slot] = [stage.admit(new) for stage in self._stages]

    def begin(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """The forward pass for these rows is about to run, and `sample` follows: what can be done meanwhile begins."""
        for i, stage in self._early_stages:
            (rows,) = self._uses_stage[slots, i].nonzero()
            if rows.size:
                stage.begin(slots[rows], positions[rows])

    def sample(self, logits: torch.Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Sampled:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from row r of the logits [num_rows, vocab_size].

        The logits may be overwritten. A row from which nothing can be drawn has an error, and no other row is touched by it.
        """
        ready = self.apply_stages(logits, slots, positions)
        return self.conclude(ready, self._ops.sample(ready.logits, self.draw_settings(slots, positions)))

    def apply_stages(self, logits: torch.Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> ReadyLogits:
        """The first part of `sample`, up to the draw."""
        logits = logits.float()
        num_logprobs = self._num_logprobs[slots]
        (wanted,) = (num_logprobs >= 0).nonzero()
        # Before any stage changes the logits: log probabilities are of the model's own distribution.
        own = logits[to_device(wanted, logits.device)] if wanted.size else None
        errors: dict[int, str] = {}
        uses_stage = self._uses_stage[slots]
        if np.count_nonzero(uses_stage):
            for stage, uses in zip(self._stages, uses_stage.T, strict=True):
                rows = np.flatnonzero(uses)
                if rows.size:
                    stage.apply(LogitsRows(logits, rows, slots[rows], positions[rows], errors))
        return ReadyLogits(logits, own, wanted, num_logprobs[wanted], errors)

    def conclude(self, ready: ReadyLogits | None, token_ids: NDArray[np.int64]) -> Sampled:
        """The last part: what becomes of the tokens, -1 where none could be drawn. None: a pass drew them from its own logits."""
        errors = {} if ready is None else ready.errors
        for row in (token_ids < 0).nonzero()[0].tolist():
            errors.setdefault(row, _NOTHING_LEFT)
            token_ids[row] = 0
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        if ready is not None and ready.own is not None:
            entries = token_logprobs(self._ops, ready.own, token_ids[ready.wanted], ready.num_logprobs)
            for row, entry in zip(ready.wanted.tolist(), entries, strict=True):
                logprobs[row] = None if row in errors else entry
        return Sampled(token_ids, logprobs, errors)

    def may_draw_in_pass(self, slots: NDArray[np.int64]) -> bool:
        """Whether these rows' tokens can be drawn from the model's logits as they are, and nothing else is wanted of them."""
        return not self._uses_stage[slots].any() and not (self._num_logprobs[slots] >= 0).any()

    def draw_settings(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> DrawSettings:
        """How these rows' tokens are drawn; valid until the next call. While the same sequences decode, only positions change."""
        if self._gathered is None or len(self._gathered[0]) != len(slots) or np.count_nonzero(self._gathered[0] != slots):
            settings = DrawSettings(
                temperature=self._temperature[slots],
                log_min_p=self._log_min_p[slots],
                top_k=self._top_k[slots],
                top_p=self._top_p[slots],
                seeds=self._seed[slots],
                sample_indices=self._sample_index[slots],
                positions=np.empty(len(slots), np.uint64),
            )
            self._gathered = slots, settings
        settings = self._gathered[1]
        settings.positions[:] = positions
        return settings


def token_logprobs(ops: Ops, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int64]) -> list[TokenLogprobs]:
    """For each row of logits [num_rows, vocab_size] float32: the entry of `token_ids`, its rank, and the `num_top` most probable ones.

    Equals have one rank, and of them the smaller token id comes first.
    """
    counts = np.minimum(num_top, logits.shape[1]).astype(np.int32)
    found = ops.logprobs(logits, token_ids, counts)
    entries = []
    rows = zip(token_ids.tolist(), found.chosen.tolist(), found.ranks.tolist(), counts.tolist(), strict=True)
    tops = zip(found.top_ids.tolist(), found.top_values.tolist(), found.top_ranks.tolist(), strict=True)
    for (token_id, logprob, rank, count), top in zip(rows, tops, strict=True):
        best = tuple(Logprob(*one) for one in zip(*(values[:count] for values in top), strict=True))
        entries.append(TokenLogprobs(Logprob(token_id, logprob, rank), best))
    return entries

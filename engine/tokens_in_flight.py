"""Tokens that the device has drawn, or is about to, and that the host has not read yet."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch_buffers import SamplingRows, SlotTables
from kernels.sampling import Draws

_MOST_STEPS = 2  # with tokens under way at once


@dataclass(eq=False)
class DrawnTokens:
    """The tokens drawn in one step."""

    turn: int  # which of the host's buffers they come to
    rows: SamplingRows
    generations: NDArray[np.int64]  # [num_rows] how many sequences each slot has had, when the step was launched
    token_ids: NDArray[np.int64] | None = None  # [num_rows], once they are here; -1 where none could be drawn
    arrival: float = 0.0  # when they were seen, by time.monotonic()


class TokensInFlight:
    """Lets a step be launched before the tokens of the step before have come back.

    Until it comes, a token's place in the table of tokens holds -1 - slot, by which the device finds it (`DrawingOps.fetch_tokens`): no
    token id is negative, and in a flat batch the entry itself must say whose token is meant.
    """

    def __init__(self, tables: SlotTables, draws: Draws) -> None:
        self._tables = tables
        self._draws = draws
        self._generations = np.zeros(len(tables.token_ids), np.int64)  # [num_slots] how many sequences each has had
        self._turn = 0
        self._under_way: deque[DrawnTokens] = deque()
        is_cuda = draws.token_ids.device.type == "cuda"
        shape = (_MOST_STEPS, len(draws.token_ids))
        self._host = torch.zeros(shape, dtype=torch.int64, pin_memory=is_cuda)  # the steps take turns
        self._arrays = self._host.numpy()
        self._copied = [torch.cuda.Event() for _ in range(_MOST_STEPS)] if is_cuda else []  # type: ignore[no-untyped-call]

    def forget(self, slot: int) -> None:
        """Another sequence takes the slot: what may still come for it is not its own."""
        self._generations[slot] += 1

    def send_back(self, rows: SamplingRows) -> DrawnTokens:
        """A pass that draws tokens for these rows has been launched: have them copied to the host, without waiting for
        that. Only the oldest step is waited for, when two are under way already.
        """
        if len(self._under_way) == _MOST_STEPS:
            self._take_first()
        self._turn = turn = (self._turn + 1) % _MOST_STEPS
        drawn = DrawnTokens(turn, rows, self._generations[rows.slots])
        num_rows = len(rows.slots)
        self._host[turn, :num_rows].copy_(self._draws.token_ids[:num_rows], non_blocking=True)
        if self._copied:
            self._copied[turn].record()
        self._tables.token_ids[rows.slots, rows.positions] = -1 - rows.slots
        self._under_way.append(drawn)
        return drawn

    def wait(self, drawn: DrawnTokens) -> NDArray[np.int64]:
        """The tokens of a step, [num_rows], -1 where none could be drawn; they, and those of the steps before, are in the table then."""
        while drawn.token_ids is None:
            self._take_first()
        return drawn.token_ids

    def wait_for_all(self) -> None:
        """Have every token in the table."""
        while self._under_way:
            self._take_first()

    def _take_first(self) -> None:
        drawn = self._under_way.popleft()
        slots, positions = drawn.rows.slots, drawn.rows.positions
        if self._copied:
            self._copied[drawn.turn].synchronize()
        drawn.token_ids, drawn.arrival = self._arrays[drawn.turn, : len(slots)].copy(), time.monotonic()
        is_own = self._generations[slots] == drawn.generations  # or else another sequence has the slot by now
        self._tables.token_ids[slots[is_own], positions[is_own]] = np.maximum(drawn.token_ids[is_own], 0)

"""Penalties: tokens that stand in the text already become less (or more) likely."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.stages.stage import LogitsRows
from engine.step import NewSequence


class Penalties:
    """repetition_penalty (Keskar et al., 2019, section 4.1) for tokens of the prompt and the output, then frequency_penalty times the
    count of a token in the output, then presence_penalty once for each token that is in it (both as OpenAI documents them).
    """

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        self._token_ids = token_ids
        num_slots = token_ids.shape[0]
        self._repetition = np.ones(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._presence = np.zeros(num_slots, np.float32)
        self._counts: dict[int, _TokenCounts] = {}  # by slot

    def admit(self, new: NewSequence) -> bool:
        slot, params = new.slot, new.params
        self._counts.pop(slot, None)
        self._repetition[slot] = params.repetition_penalty
        self._frequency[slot] = params.frequency_penalty
        self._presence[slot] = params.presence_penalty
        if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
            return False
        with_prompt = params.repetition_penalty != 1.0
        self._counts[slot] = _TokenCounts(new.token_ids[: new.num_prompt_tokens] if with_prompt else [], new.num_prompt_tokens)
        return True

    def apply(self, batch: LogitsRows) -> None:
        counts = [self._counts[slot] for slot in batch.slots.tolist()]
        for one, slot, position in zip(counts, batch.slots.tolist(), batch.positions.tolist(), strict=True):
            one.advance(self._token_ids[slot], position)
        entries = batch.entries([one.token_ids for one in counts])
        lengths = [len(one.token_ids) for one in counts]

        def of_each(values: NDArray[np.float32]) -> torch.Tensor:
            return batch.tensor(np.repeat(values[batch.slots], lengths))

        num_generated = batch.tensor(np.concatenate([one.num_generated for one in counts]))
        repetition = of_each(self._repetition)
        values = batch.logits[entries]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= of_each(self._frequency) * num_generated
        values -= of_each(self._presence) * (num_generated > 0)
        batch.logits[entries] = values


class _TokenCounts:
    """How often each token that occurs has been generated, kept up as the sequence grows."""

    def __init__(self, prompt: list[int], num_prompt_tokens: int) -> None:
        self._prompt = np.unique(np.array(prompt, np.int64))
        self._num_prompt_tokens = num_prompt_tokens
        self._start_over()

    def _start_over(self) -> None:
        self._end = self._num_prompt_tokens  # tokens at positions before it are counted
        self._size = len(self._prompt)
        self._ids = np.concatenate((self._prompt, np.zeros(64, np.int64)))
        self._generated = np.zeros(len(self._ids), np.float32)
        self._places = {token_id: place for place, token_id in enumerate(self._prompt.tolist())}

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """[n] the tokens that occur, each once, in any order."""
        return self._ids[: self._size]

    @property
    def num_generated(self) -> NDArray[np.float32]:
        """[n] how often each was generated; zero for those that are in the prompt only."""
        return self._generated[: self._size]

    def advance(self, token_ids: NDArray[np.int32], position: int) -> None:
        """Count the sequence's tokens up to `position`. Going back counts them anew."""
        if position < self._end:
            self._start_over()
        for token_id in token_ids[self._end : position].tolist():
            place = self._place(token_id)  # first, as it may grow the arrays
            self._generated[place] += 1
        self._end = position

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._size
            self._size += 1
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._generated = np.concatenate((self._generated, np.zeros_like(self._generated)))
            self._ids[place] = token_id
        return place

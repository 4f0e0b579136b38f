"""structured_outputs: only tokens with which the answer can still become what was asked for, and its end only where it is complete."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidRequestError
from engine.grammar.compiler import GrammarCompiler
from engine.stages.stage import LogitsRows
from engine.step import NewSequence

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from engine.grammar.masks import TokenMask


class _Masks(NamedTuple):
    places: list[int]  # of the rows that are masked, among those of the step
    masks: list[TokenMask]  # one for each
    errors: dict[int, str]  # by place: why the sequence cannot go on


class Grammar:
    """Masks what no grammar allows. The masks of a step are computed on a thread, while the model computes the logits."""

    def __init__(self, token_ids: NDArray[np.int32], grammars: GrammarCompiler) -> None:
        self._token_ids = token_ids
        self._grammars = grammars
        self._of_slot: dict[int, _Follower] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._begun: Future[_Masks] | None = None

    def admit(self, new: NewSequence) -> bool:
        self._of_slot.pop(new.slot, None)
        settings = new.params.structured_outputs
        if settings is not None:
            self._of_slot[new.slot] = _Follower(self._grammars, new)
        return settings is not None

    def begin(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        self._begun = self._thread.submit(self._compute, slots, positions)

    def apply(self, batch: LogitsRows) -> None:
        begun, self._begun = self._begun, None
        masks = self._compute(batch.slots, batch.positions) if begun is None else begun.result()
        for place, mask in zip(masks.places, masks.masks, strict=True):
            mask.apply(batch.logits[batch.rows[place]])
        for i, reason in masks.errors.items():
            batch.errors[int(batch.rows[i])] = reason

    def _compute(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> _Masks:
        # Imported here: whoever makes no such requests does not wait for it when the engine starts.
        from engine.grammar.masks import token_masks

        matchers: list[LLMatcher] = []
        errors: dict[int, str] = {}
        places = []
        for i, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
            try:
                matchers.append(self._of_slot[slot].at(self._token_ids[slot], position))
                places.append(i)
            except InvalidRequestError as refusal:
                errors[i] = str(refusal)
        masks = token_masks(matchers, self._grammars.vocab_size)
        for i, matcher in zip(places, matchers, strict=True):
            if matcher.is_error():
                errors[i] = f"the answer cannot go on under its grammar: {matcher.get_error().strip()[:300]}"
        return _Masks(places, masks, errors)


class _Follower:
    """Keeps a sequence's matcher where the table of tokens is."""

    def __init__(self, grammars: GrammarCompiler, new: NewSequence) -> None:
        self._grammars = grammars
        self._settings = new.params.structured_outputs
        self._num_prompt_tokens = new.num_prompt_tokens
        self._matcher: LLMatcher | None = None
        self._followed = np.zeros(0, np.int32)  # the generated tokens that the matcher has taken

    def at(self, token_ids: NDArray[np.int32], position: int) -> LLMatcher:
        """The matcher, having seen what is generated before `position`. Raises InvalidRequestError when the grammar does not compile.

        On arrival it did, under the same limits.
        """
        generated = token_ids[self._num_prompt_tokens : position]
        if self._matcher is None:
            assert self._settings is not None
            self._matcher = self._grammars.matcher(self._settings)
        known = len(self._followed)
        if not np.array_equal(generated[:known], self._followed):
            self._matcher.reset()
            known = 0
        if known < len(generated):
            self._matcher.consume_tokens(generated[known:].tolist())
            self._followed = generated.copy()
        return self._matcher

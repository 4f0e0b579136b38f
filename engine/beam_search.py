"""Beam search: the n most probable continuations of a prompt, instead of n drawn ones.

One search is n sequences, its beams. They start, stop and are preempted together, and all compute one token in each step. The step's log
probabilities then decide which beams go on with which token, so that a beam may go on as several or not at all (Kwon et al., 2023,
section 4.4). Scores and ends are those of Hugging Face's `generate`: a hypothesis scores its summed log probability divided by its length
to the power of `length_penalty`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.outputs import FinishReason, TokenLogprobs
from engine.sequence import Sequence, SequenceStatus


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that has ended."""

    token_ids: list[int]  # generated ones
    logprobs: list[TokenLogprobs]  # one for each
    score: float
    finish_reason: FinishReason
    stop_reason: int | None


@dataclass(frozen=True)
class Continuation:
    """What one beam becomes: the beam that was `source`, and one more token."""

    source: Sequence
    logprobs: TokenLogprobs
    total: float  # log probability of all generated tokens

    @property
    def token_id(self) -> int:
        return self.logprobs.chosen.token_id


class BeamSearch:
    """The beams of one request, and the hypotheses that they have come to. Deterministic: of equals, the earlier beam goes first."""

    def __init__(self, first: Sequence, eos_token_ids: Iterable[int]) -> None:
        params = first.request.params
        self.width = params.n
        self.beams = [first]  # side by side with the request's sample indices
        self._params = params
        self._max_tokens = first.request.max_tokens
        self._eos_token_ids = frozenset(() if params.ignore_eos else eos_token_ids)
        self.restart()

    @property
    def leader(self) -> Sequence:
        """The beam that waits, and computes the prompt, for all."""
        return self.beams[0]

    @property
    def is_complete(self) -> bool:
        """All its sequences have arrived."""
        return len(self.beams) == self.width

    @property
    def num_candidates(self) -> int:
        """Most probable tokens to look at after each beam: all that end a hypothesis may be among them, and `width` must be left."""
        num_ends = len(self._eos_token_ids.union(self._params.stop_token_ids))
        return max(self.width + num_ends, self._params.logprobs or 0)

    def restart(self) -> None:
        """Begin again from the prompt, after a preemption: a search comes to the same result however often it is run."""
        self._finished: list[Hypothesis] = []
        self._totals: dict[Sequence, float] = {self.leader: 0.0}  # of the beams that are in use
        self._logprobs: dict[Sequence, list[TokenLogprobs]] = {self.leader: []}
        self._candidates: dict[Sequence, TokenLogprobs] = {}
        for beam in self.beams:
            beam.restart()

    def note(self, beam: Sequence, logprobs: TokenLogprobs) -> None:
        """A step has computed the beam's next token: `logprobs.top` holds the `num_candidates` most probable ones."""
        self._candidates[beam] = logprobs

    @property
    def may_advance(self) -> bool:
        return len(self._candidates) == len(self._totals)

    def advance(self) -> list[Continuation]:
        """Decide how the search goes on, once all beams are noted. Returns at most `width` continuations; none: it has ended."""
        length = self.leader.num_generated_tokens + 1
        candidates = self._ranked()
        for candidate in candidates[: self.width]:
            reason, stop_reason = self._end(candidate.token_id, length)
            if reason is not None:
                self._finish(candidate, length, reason, stop_reason)
        going_on = [candidate for candidate in candidates if self._end(candidate.token_id, length)[0] is None][: self.width]
        self._candidates.clear()
        return [] if not going_on or self._has_ended(going_on[0], length) else going_on

    def take(self, continuations: list[Continuation]) -> None:
        """Make beam i what `continuations[i]` says; those left over are out of use until there are more."""
        token_ids = [[*continuation.source.token_ids, continuation.token_id] for continuation in continuations]
        logprobs = [[*self._logprobs[continuation.source], continuation.logprobs] for continuation in continuations]
        self._totals = {beam: continuation.total for beam, continuation in zip(self.beams, continuations, strict=False)}
        self._logprobs = dict(zip(self.beams, logprobs, strict=False))
        for beam, tokens in zip(self.beams, token_ids, strict=False):
            beam.token_ids = tokens

    def best(self) -> list[Hypothesis]:
        """The hypotheses, best first."""
        shown = self._params.logprobs
        return [
            Hypothesis(
                h.token_ids, [TokenLogprobs(e.chosen, e.top[: shown or 0]) for e in h.logprobs], h.score, h.finish_reason, h.stop_reason
            )
            for h in self._finished
        ]

    def _ranked(self) -> list[Continuation]:
        """All candidates, most probable first."""
        candidates = [
            Continuation(beam, TokenLogprobs(entry, logprobs.top), self._totals[beam] + entry.logprob)
            for beam in self.beams
            if (logprobs := self._candidates.get(beam)) is not None
            for entry in logprobs.top[: self.num_candidates]
        ]
        return sorted(candidates, key=lambda candidate: -candidate.total)  # stable

    def _end(self, token_id: int, length: int) -> tuple[FinishReason | None, int | None]:
        """Whether a token ends its hypothesis, which has `length` tokens with it; and the stop token id."""
        if length > self._params.min_tokens:
            if token_id in self._params.stop_token_ids:
                return "stop", token_id
            if token_id in self._eos_token_ids:
                return "stop", None
        return ("length" if length >= self._max_tokens else None), None

    def _finish(self, candidate: Continuation, length: int, reason: FinishReason, stop_reason: int | None) -> None:
        source = candidate.source
        tokens = [*source.token_ids[source.num_prompt_tokens :], candidate.token_id]
        score = candidate.total / math.pow(length, self._params.length_penalty)
        self._finished.append(Hypothesis(tokens, [*self._logprobs[source], candidate.logprobs], score, reason, stop_reason))
        self._finished = sorted(self._finished, key=lambda hypothesis: -hypothesis.score)[: self.width]

    def _has_ended(self, best: Continuation, length: int) -> bool:
        """There are enough hypotheses, and the best beam is not expected to come to a better one than the worst of them."""
        if len(self._finished) < self.width:
            return False
        params = self._params
        if params.early_stopping is True:
            return True
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._max_tokens
        return best.total / math.pow(length, params.length_penalty) <= self._finished[-1].score


class BeamSearches:
    """The searches that have not ended, by the group of their request."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._by_group: dict[str, BeamSearch] = {}

    def join(self, sequence: Sequence) -> BeamSearch | None:
        """Make the sequence the next beam of its search. Returns the search when that is complete."""
        group_id = sequence.request.group_id or sequence.request_id
        search = self._by_group.get(group_id)
        if search is None:
            search = self._by_group[group_id] = BeamSearch(sequence, self._eos_token_ids)
        else:
            search.beams.append(sequence)
        sequence.search = search
        return search if search.is_complete else None

    @property
    def held(self) -> list[Sequence]:
        """Waiting beams that stand in no queue: all but the leader of a complete search."""
        behind = [beam for search in self._by_group.values() for beam in search.beams[1 if search.is_complete else 0 :]]
        return [beam for beam in behind if beam.status is SequenceStatus.WAITING]

    def remove(self, search: BeamSearch) -> None:
        del self._by_group[search.leader.request.group_id or search.leader.request_id]

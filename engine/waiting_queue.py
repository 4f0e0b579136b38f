"""WaitingQueue: the sequences that wait, in the order of a policy, and none of them for ever."""

from __future__ import annotations

from collections.abc import Iterator

from engine.policies import POLICIES, Line, by_arrival
from engine.sequence import Sequence


class WaitingQueue:
    """A policy, and a bound on what it may do to one sequence.

    After `max_overtakings` starts in a row of sequences that are not the longest waiting one, that one is next whatever the policy says:
    a sequence with k older ones before it starts within (k + 1) * (max_overtakings + 1) starts. It then ranks before all that the policy
    ranks, so that it is not preempted for them either.
    """

    def __init__(self, policy: str, max_overtakings: int) -> None:
        self._policy = POLICIES[policy]()
        self._max_overtakings = max_overtakings
        self._by_arrival = Line(by_arrival)
        self._num_overtakings = 0  # since the longest waiting sequence last started

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_arrival)

    def add(self, sequence: Sequence) -> None:
        """A sequence that is new, or was preempted, waits."""
        self._by_arrival.add(sequence)
        self._policy.add(sequence)

    def first(self) -> Sequence | None:
        """The sequence that starts next."""
        return self._by_arrival.first() if self._has_waited_enough else self._policy.first()

    def start(self, sequence: Sequence) -> None:
        """The first sequence runs: it leaves the queue, and gets its rank among the running ones."""
        if sequence is self._by_arrival.first():
            aged, self._num_overtakings = self._has_waited_enough, 0
        else:
            aged = False
            self._num_overtakings += 1
        self._by_arrival.remove(sequence)
        rank = self._policy.start(sequence)
        sequence.rank = (0, *by_arrival(sequence)) if aged or sequence.has_aged else (1, *rank)

    def finish(self, sequence: Sequence) -> None:
        """A sequence ended, whether it waited or ran."""
        if sequence in self._by_arrival:
            self._by_arrival.remove(sequence)
        self._policy.finish(sequence)

    @property
    def _has_waited_enough(self) -> bool:
        return self._num_overtakings >= self._max_overtakings

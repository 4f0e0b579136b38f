"""Scheduling policies: in which order waiting sequences start, and which running ones give way when blocks run out.

    fcfs       in order of arrival
    priority   the request's `priority`, lower first, then in order of arrival: of equal priorities it is fcfs, hence the default
    fair       tenants take turns, each worth as many tokens as another's; a tenant's own requests are in order of arrival

A policy orders; that none waits for ever under it is WaitingQueue's to see to.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from engine.sequence import Sequence

Key: TypeAlias = tuple[int, ...]

# Tokens of a tenant's turn in `fair`. Small beside most requests, so that tenants alternate; a request that is worth more is paid for by
# the turns that its tenant misses.
QUANTUM = 256


class Policy(Protocol):
    """Holds the waiting sequences. Every operation takes logarithmic time at most, whatever waits."""

    def add(self, sequence: Sequence) -> None:
        """A sequence that is new, or was preempted, waits."""
        ...

    def first(self) -> Sequence | None:
        """The one that starts next; another may be after an `add`."""
        ...

    def start(self, sequence: Sequence) -> Key:
        """A waiting sequence, the first or not, runs. Returns its rank among the running ones: the largest gives way first."""
        ...

    def finish(self, sequence: Sequence) -> None:
        """A sequence ended, whether it waited or ran."""
        ...


def by_arrival(sequence: Sequence) -> Key:
    return (sequence.request.arrival, sequence.request.sample_index)


def by_priority(sequence: Sequence) -> Key:
    return (sequence.request.priority, *by_arrival(sequence))


class Line:
    """Sequences by a key, smallest first. Adding, looking and removing take logarithmic time."""

    def __init__(self, key: Callable[[Sequence], Key]) -> None:
        self._key = key
        self._num_added = 0
        self._heap: list[tuple[Key, int, Sequence]] = []  # entries of removed sequences go stale
        self._entries: dict[Sequence, int] = {}  # number of each member's entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._entries

    def add(self, sequence: Sequence) -> None:
        assert sequence not in self._entries, f"{sequence.request_id} waits twice"
        self._num_added += 1
        self._entries[sequence] = self._num_added
        heapq.heappush(self._heap, (self._key(sequence), self._num_added, sequence))

    def first(self) -> Sequence | None:
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        del self._entries[sequence]
        # Clients that come and go behind a head that cannot start yet must not pile up.
        if len(self._heap) > 2 * len(self._entries):
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[Key, int, Sequence]) -> bool:
        return self._entries.get(entry[2]) == entry[1]


class Ordered:
    """One line for all; who is last in it gives way first."""

    def __init__(self, key: Callable[[Sequence], Key]) -> None:
        self._key = key
        self._line = Line(key)

    def add(self, sequence: Sequence) -> None:
        self._line.add(sequence)

    def first(self) -> Sequence | None:
        return self._line.first()

    def start(self, sequence: Sequence) -> Key:
        self._line.remove(sequence)
        return self._key(sequence)

    def finish(self, sequence: Sequence) -> None:
        if sequence in self._line:
            self._line.remove(sequence)


@dataclass(eq=False)
class _Tenant:
    """Lives while any of the tenant's sequences does: debts and credits end with the last."""

    line: Line = field(default_factory=lambda: Line(by_arrival))
    deficit: int = QUANTUM  # tokens that it may start before the others have their turn
    num_unfinished: int = 0
    in_turn: bool = False  # it stands in one of the two rounds

    @property
    def num_running(self) -> int:
        return self.num_unfinished - len(self.line)


class Fair:
    """Deficit round robin (Shreedhar and Varghese, 1996) in tokens, with the newcomers' round of RFC 8290.

    A sequence costs its prompt when it starts and its generated tokens when it ends, as nobody knows these before; so a tenant may go
    into debt, and misses turns until that is paid. A tenant that had nothing waiting goes before all that had, unless it is in debt:
    one request is not behind a thousand of somebody else. Of the running sequences, those give way first whose tenant runs most.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._newcomers: deque[_Tenant] = deque()  # each for one sequence, before the others
        self._others: deque[_Tenant] = deque()
        self._num_started = 0

    def add(self, sequence: Sequence) -> None:
        tenant = self._tenants.setdefault(sequence.request.tenant, _Tenant())
        tenant.line.add(sequence)
        if not sequence.num_preemptions:
            tenant.num_unfinished += 1
        if not tenant.in_turn:
            tenant.in_turn = True
            (self._newcomers if tenant.deficit > 0 else self._others).append(tenant)

    def first(self) -> Sequence | None:
        while rounds := self._newcomers or self._others:
            tenant = rounds[0]
            if not tenant.line:
                tenant.in_turn = False
                rounds.popleft()
            elif tenant.deficit > 0:
                return tenant.line.first()
            else:
                tenant.deficit += QUANTUM
                rounds.popleft()
                self._others.append(tenant)
        return None

    def start(self, sequence: Sequence) -> Key:
        tenant = self._tenants[sequence.request.tenant]
        rank = (tenant.num_running, self._num_started)
        self._num_started += 1
        tenant.line.remove(sequence)
        if not sequence.num_preemptions:  # a resumed one has paid
            tenant.deficit -= sequence.num_prompt_tokens
        if self._newcomers and self._newcomers[0] is tenant:
            self._others.append(self._newcomers.popleft())
        return rank

    def finish(self, sequence: Sequence) -> None:
        tenant = self._tenants[sequence.request.tenant]
        if sequence in tenant.line:
            tenant.line.remove(sequence)
        tenant.deficit -= sequence.num_generated_tokens
        tenant.num_unfinished -= 1
        if not tenant.num_unfinished:
            del self._tenants[sequence.request.tenant]


POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": lambda: Ordered(by_arrival),
    "priority": lambda: Ordered(by_priority),
    "fair": Fair,
}

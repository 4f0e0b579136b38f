from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import EngineRequest
from engine.policies import POLICIES, QUANTUM
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.waiting_queue import WaitingQueue

ALL = list(POLICIES)


class Queue:
    """A waiting queue, and the few words that a test of it needs."""

    def __init__(self, policy: str, max_overtakings: int = 100) -> None:
        self.queue = WaitingQueue(policy, max_overtakings)
        self.num_added = 0

    def add(self, name: str, tenant: str = "", priority: int = 0, length: int = 10) -> Sequence:
        self.num_added += 1
        request = EngineRequest(
            request_id=name,
            prompt_token_ids=[1] * length,
            params=SamplingParams(),
            seed=0,
            max_tokens=10,
            arrival=self.num_added,
            priority=priority,
            tenant=tenant,
        )
        sequence = Sequence(request)
        self.queue.add(sequence)
        return sequence

    def start(self) -> Sequence:
        sequence = self.queue.first()
        assert sequence is not None
        self.queue.start(sequence)
        return sequence

    def preempt(self, sequence: Sequence) -> None:
        sequence.num_preemptions += 1
        self.queue.add(sequence)

    def finish(self, sequence: Sequence, num_generated: int = 0) -> None:
        sequence.token_ids.extend([1] * num_generated)
        self.queue.finish(sequence)

    def starts(self, count: int) -> list[str]:
        return [self.start().request_id for _ in range(count)]


# -- each policy's order


def test_fcfs_starts_in_order_of_arrival_whatever_the_priorities_and_tenants() -> None:
    queue = Queue("fcfs")
    for i in range(20):
        queue.add(f"{i}", tenant="ab"[i % 2], priority=-i)
    assert queue.starts(20) == [f"{i}" for i in range(20)]


def test_priority_0_overtakes_priority_10_and_equal_ones_keep_their_order() -> None:
    queue = Queue("priority")
    for i in range(5):
        queue.add(f"later {i}", priority=10)
    for i in range(5):
        queue.add(f"soon {i}", priority=0)
    assert queue.starts(10) == [f"soon {i}" for i in range(5)] + [f"later {i}" for i in range(5)]


@pytest.mark.parametrize("num_started", [1, 3, 20, 100])
def test_one_request_of_a_tenant_starts_ahead_of_every_queued_one_of_a_tenant_with_500(num_started: int) -> None:
    queue = Queue("fair")
    for i in range(500):
        queue.add(f"many {i}", tenant="many")
    queue.starts(num_started)
    queue.add("one", tenant="one")
    assert queue.starts(2) == ["one", f"many {num_started}"]


def test_tenants_get_as_many_tokens_as_each_other_whatever_the_size_and_number_of_their_requests() -> None:
    queue = Queue("fair")
    sizes = {"small": 20, "medium": 200, "large": 2000}
    tokens: Counter[str] = Counter()
    for tenant, size in sizes.items():
        for i in range(100000 // size):
            queue.add(f"{tenant} {i}", tenant=tenant, length=size)
    while max(tokens.values(), default=0) < 50000:
        sequence = queue.start()
        tokens[sequence.request.tenant] += sequence.num_prompt_tokens
    assert max(tokens.values()) - min(tokens.values()) <= 2000 + QUANTUM


def test_generated_tokens_count_as_prompt_tokens_do() -> None:
    queue = Queue("fair")
    for i in range(1000):
        queue.add(f"brief {i}", tenant="brief", length=10)
        queue.add(f"wordy {i}", tenant="wordy", length=10)
    starts: Counter[str] = Counter()
    for _ in range(600):
        sequence = queue.start()
        starts[sequence.request.tenant] += 1
        queue.finish(sequence, 990 if sequence.request.tenant == "wordy" else 0)
    assert starts["brief"] > 90 * starts["wordy"]


def test_a_tenant_that_keeps_one_request_waiting_does_not_go_first_for_ever() -> None:
    queue = Queue("fair")
    for i in range(500):
        queue.add(f"many {i}", tenant="many", length=100)
    queue.add("one 0", tenant="one", length=100)
    queue.add("one 1", tenant="one", length=100)
    starts: Counter[str] = Counter()
    for i in range(2, 200):
        sequence = queue.start()
        starts[sequence.request.tenant] += 1
        if sequence.request.tenant == "one":
            queue.add(f"one {i}", tenant="one", length=100)
    assert abs(starts["one"] - starts["many"]) <= 2 * (1 + QUANTUM // 100)


def test_a_preempted_request_is_the_first_of_its_tenant_and_does_not_pay_again() -> None:
    queue = Queue("fair")
    for i in range(4):
        queue.add(f"a{i}", tenant="a", length=QUANTUM)
        queue.add(f"b{i}", tenant="b", length=QUANTUM)
    first = queue.start()
    assert first.request_id == "a0"
    queue.preempt(first)
    assert queue.starts(4) == ["b0", "a0", "a1", "b1"]


# -- who gives way


def test_the_running_ones_rank_as_the_policy_has_it() -> None:
    fcfs, priority = Queue("fcfs"), Queue("priority")
    for queue in (fcfs, priority):
        for i, urgency in enumerate([5, 0, 3]):
            queue.add(f"{i}", priority=urgency)
    assert [s.request_id for s in sorted((fcfs.start() for _ in range(3)), key=lambda s: s.rank)] == ["0", "1", "2"]
    assert [s.request_id for s in sorted((priority.start() for _ in range(3)), key=lambda s: s.rank)] == ["1", "2", "0"]


def test_the_tenant_that_runs_most_gives_way_first() -> None:
    queue = Queue("fair")
    for i in range(6):
        queue.add(f"many {i}", tenant="many")
    running = [queue.start() for _ in range(6)]
    queue.add("one", tenant="one")
    running.append(queue.start())
    assert [s.request_id for s in sorted(running, key=lambda s: s.rank)] == ["many 0", "one", *(f"many {i}" for i in range(1, 6))]


# -- none waits for ever


def flood_with_priority(queue: Queue, i: int) -> None:
    queue.add(f"flood {i}", priority=0)


def flood_with_tenants(queue: Queue, i: int) -> None:
    queue.add(f"flood {i}", tenant=f"new {i}")


FLOODS = [("priority", flood_with_priority), ("fair", flood_with_tenants), ("fcfs", flood_with_priority)]


@pytest.mark.parametrize(("policy", "flood"), FLOODS)
def test_no_request_waits_for_ever_under_a_constant_flood_that_goes_before_it(policy: str, flood: Callable[[Queue, int], None]) -> None:
    bound, num_waiting = 7, 4
    queue = Queue(policy, max_overtakings=bound)
    queue.add("old", tenant="old", priority=-1)
    queue.start()
    for i in range(num_waiting):
        queue.add(f"patient {i}", tenant="old", priority=10)
    started: dict[str, int] = {}
    for i in range(100):
        flood(queue, 2 * i)
        flood(queue, 2 * i + 1)
        started[queue.start().request_id] = i
    for k in range(num_waiting):
        assert started[f"patient {k}"] < (k + 1) * (bound + 1)


def test_one_that_waited_so_long_is_not_preempted_for_the_flood_either() -> None:
    queue = Queue("priority", max_overtakings=3)
    queue.add("patient", priority=10)
    for i in range(20):
        queue.add(f"flood {i}", priority=0)
    running = [queue.start() for _ in range(8)]
    assert min(running, key=lambda s: s.rank).request_id == "patient"
    patient = running[3]
    queue.preempt(patient)
    while queue.start() is not patient:
        assert len(queue.queue) > 5
    assert patient.has_aged


def test_without_overtaking_every_policy_is_fcfs() -> None:
    for policy in ALL:
        queue = Queue(policy, max_overtakings=0)
        for i in range(30):
            queue.add(f"{i}", tenant=f"{i % 4}", priority=-i)
        assert queue.starts(30) == [f"{i}" for i in range(30)]


# -- invariants


@pytest.mark.parametrize("policy", ALL)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), bound=st.integers(0, 10))
def test_whatever_comes_and_goes_each_starts_once_and_within_the_bound(policy: str, seed: int, bound: int) -> None:
    rng = random.Random(seed)
    queue = Queue(policy, bound)
    waiting: set[Sequence] = set()
    running: list[Sequence] = []
    num_overtakings = 0
    for i in range(200):
        action = rng.random()
        if action < 0.5:
            waiting.add(queue.add(f"{i}", tenant=rng.choice("abc"), priority=rng.randint(0, 3), length=rng.choice([1, 50, 700])))
        elif action < 0.75 and waiting:
            oldest = min(waiting, key=lambda s: s.request.arrival)
            sequence = queue.start()
            num_overtakings = 0 if sequence is oldest else num_overtakings + 1
            assert num_overtakings <= bound
            waiting.remove(sequence)
            running.append(sequence)
        elif action < 0.85 and running:
            sequence = running.pop(rng.randrange(len(running)))
            queue.preempt(sequence)
            waiting.add(sequence)
        elif running and rng.random() < 0.7:
            queue.finish(running.pop(rng.randrange(len(running))), rng.randint(0, 300))
        elif waiting:
            sequence = rng.choice(list(waiting))
            queue.finish(sequence)
            waiting.remove(sequence)
        assert set(queue.queue) == waiting
        assert (queue.queue.first() is None) == (not waiting)
    while queue.queue.first() is not None:
        waiting.remove(queue.start())
    assert not waiting


@pytest.mark.parametrize("policy", ALL)
def test_sequences_that_come_and_go_leave_nothing_behind(policy: str) -> None:
    queue = Queue(policy)
    for i in range(300):
        sequence = queue.add(f"{i}", tenant=f"{i}")
        if i % 2:
            sequence = queue.start()
        queue.finish(sequence)
    assert len(queue.queue) == 0
    assert len(queue.queue._by_arrival._heap) <= 2
    if policy == "fair":
        assert not queue.queue._policy._tenants

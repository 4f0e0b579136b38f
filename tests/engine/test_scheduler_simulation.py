from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_worker import Worker
from simulation import Setting, Simulation, Traffic, run

from engine.beam_search import BeamSearch
from engine.block_manager import BlockManager
from engine.free_list import FreeList
from engine.host_cache import HostCache
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.siblings import Siblings
from engine.step import StepInput
from engine.waiting_queue import WaitingQueue

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_gets_the_tokens_that_each_request_gets_alone_and_leaves_no_block_behind(seed: int) -> None:
    for round_ in range(25):
        run(1000 * seed + round_, num_turns=80)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # against hanging: on a crowded machine the longest takes five minutes
@pytest.mark.parametrize("seed", range(100, 110))
def test_long_random_traffic_gets_the_tokens_that_each_request_gets_alone(seed: int) -> None:
    for round_ in range(100):
        run(1000 * seed + round_, num_turns=300)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_pool_for_one_sequence_preempts_all_the_time_and_still_finishes_all(depth: int) -> None:
    setting = Setting(block_size=2, num_blocks=20, max_num_seqs=6, token_budget=9, max_model_len=40, depth=depth)
    num_preemptions = sum(run(seed, 60, setting).scheduler.num_preemptions for seed in range(20))
    assert num_preemptions > 20


def test_traffic_with_shared_prefixes_finds_them_and_evicts_them() -> None:
    runs = [run(seed, 80, Setting(num_blocks=20)) for seed in range(10)]
    assert sum(simulation.scheduler.num_prefix_hits for simulation in runs) > 100
    assert sum(simulation.manager.num_evictions for simulation in runs) > 100


@pytest.mark.parametrize("caching", [True, False])
def test_traffic_of_requests_for_several_sequences_forks_them(caching: bool) -> None:
    settings = [Setting(block_size=size, num_blocks=40, enable_prefix_caching=caching) for size in (4, 8)]
    assert sum(run(seed, 80, setting).num_copies for setting in settings for seed in range(5)) > 50


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_host_blocks", [12, 2000])
def test_a_small_pool_swaps_out_and_in_and_finds_in_host_memory_what_it_evicted(depth: int, num_host_blocks: int) -> None:
    setting = Setting(block_size=2, num_blocks=20, token_budget=9, depth=depth, num_host_blocks=num_host_blocks, share_of_searches=0.0)
    runs = [run(seed, 60, setting) for seed in range(12)]
    num_swaps = sum(simulation.scheduler.num_swaps for simulation in runs)
    num_preemptions = sum(simulation.scheduler.num_preemptions for simulation in runs)
    is_large = num_host_blocks == 2000
    assert 0 < num_swaps <= num_preemptions
    assert not is_large or num_swaps == num_preemptions
    assert sum(simulation.scheduler.num_host_hits for simulation in runs) > 20
    assert (sum(simulation.host.num_evictions for simulation in runs) == 0) == is_large


def test_without_a_prefix_cache_only_swapped_sequences_go_to_host_memory() -> None:
    setting = Setting(block_size=2, num_blocks=20, token_budget=9, num_host_blocks=100, enable_prefix_caching=False)
    runs = [run(seed, 60, setting) for seed in range(12)]
    assert sum(simulation.scheduler.num_swaps for simulation in runs) > 5
    assert all(simulation.scheduler.num_host_hits == 0 for simulation in runs)
    recomputing = [run(seed, 60, dataclasses.replace(setting, preemption_mode="recompute")) for seed in range(12)]
    assert sum(simulation.scheduler.num_preemptions for simulation in recomputing) > 5
    assert all(simulation.num_swapped_blocks == 0 for simulation in recomputing)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Requests, aborts, schedules and updates in any order that the scheduler allows; hypothesis shrinks what fails."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        rng = random.Random(seed)
        self.simulation = Simulation(Setting.draw(rng))
        self.traffic = Traffic(self.simulation, rng)

    @rule()
    def arrive(self) -> None:
        self.traffic.arrive()

    @precondition(lambda self: self.simulation.unfinished)
    @rule(index=st.integers(0, 100))
    def abort(self, index: int) -> None:
        unfinished = self.simulation.unfinished
        self.simulation.abort(unfinished[index % len(unfinished)])

    @precondition(lambda self: len(self.simulation.under_way) < 4)
    @rule()
    def schedule(self) -> None:
        self.simulation.schedule()

    @precondition(lambda self: self.simulation.under_way)
    @rule()
    def update(self) -> None:
        self.simulation.update()

    @rule()
    def reset_prefix_cache(self) -> None:
        self.simulation.manager.reset_prefix_cache()

    @invariant()
    def all_rules_hold(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


# What the simulation is worth: each of these bugs, and it must fail.


def loses_a_reference(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager._dereference
    calls = iter(range(10**9))

    def wrong(self: BlockManager, block: Any) -> None:
        if next(calls) % 50 != 49:
            right(self, block)

    patch.setattr(BlockManager, "_dereference", wrong)


def registers_a_block_before_it_is_computed(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.register

    def wrong(self: BlockManager, sequence: Sequence, step_done: bool) -> list[int]:
        computed = sequence.num_computed_tokens
        sequence.num_computed_tokens = min(computed + 1, len(sequence.block_table) * self.block_size)
        changed = right(self, sequence, step_done)
        sequence.num_computed_tokens = computed
        return changed

    patch.setattr(BlockManager, "register", wrong)


def replaces_a_duplicate_while_it_is_being_written(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.register
    patch.setattr(BlockManager, "register", lambda self, sequence, step_done: right(self, sequence, True))


def gives_blocks_back_first_to_last(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: BlockManager, sequence: Sequence) -> None:
        for block_id in sequence.block_table:
            self._dereference(self._blocks[block_id])
        sequence.block_table, sequence.num_registered_blocks, sequence.num_computed_tokens = [], 0, 0

    patch.setattr(BlockManager, "release", wrong)


def evicts_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreeList, "push_back", FreeList.push_front)


def finds_the_last_token_in_the_cache(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager._max_hits

    def wrong(self: BlockManager, sequence: Sequence) -> int:
        return len(sequence.token_ids) // self.block_size if right(self, sequence) else 0

    patch.setattr(BlockManager, "_max_hits", wrong)


def shares_across_cache_salts(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager._hash

    class Unsalted:
        cache_salt = None

    def wrong(self: BlockManager, sequence: Sequence, index: int) -> bytes:
        request, sequence.request = sequence.request, Unsalted()  # type: ignore[assignment]
        try:
            return right(self, sequence, index)
        finally:
            sequence.request = request

    patch.setattr(BlockManager, "_hash", wrong)


def hashes_a_block_without_those_before_it(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: BlockManager, sequence: Sequence, index: int) -> bytes:
        block = sequence.token_ids[index * self.block_size : (index + 1) * self.block_size]
        return repr((index, sequence.request.cache_salt, block)).encode()

    patch.setattr(BlockManager, "_hash", wrong)


def keeps_hits_for_requests_that_need_every_position(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: BlockManager, sequence: Sequence) -> int:
        return (len(sequence.token_ids) - 1) // self.block_size if self.enable_prefix_caching else 0

    patch.setattr(BlockManager, "_max_hits", wrong)


def skips_a_copy(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.take_copies
    patch.setattr(BlockManager, "take_copies", lambda self: right(self)[1:])


def writes_to_a_block_that_siblings_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockManager, "_copy_on_write", lambda self, sequence, index: None)


def copies_what_the_same_step_computes(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Siblings, sequence: Sequence, num_written: Any) -> Any:
        return right(self, sequence, {other.request_id: other.num_computed_tokens for other in self._running(sequence)})

    right = Siblings.source
    patch.setattr(Siblings, "source", wrong)


def lets_beams_take_over_one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.reassign

    def wrong(self: BlockManager, pairs: list[tuple[Sequence, Sequence]]) -> None:
        for pair in pairs:
            right(self, [pair])

    patch.setattr(BlockManager, "reassign", wrong)


def tells_the_worker_nothing_of_beams_that_go_on_as_others(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler.schedule

    def wrong(self: Scheduler) -> Any:
        self._renewed.clear()
        return right(self)

    patch.setattr(Scheduler, "schedule", wrong)


def goes_on_with_a_preempted_search_where_it_was(patch: pytest.MonkeyPatch) -> None:
    right = BeamSearch.restart
    patch.setattr(BeamSearch, "restart", lambda self: None if hasattr(self, "_totals") else right(self))


def tells_the_worker_nothing_of_replaced_blocks(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler.schedule

    def wrong(self: Scheduler) -> Any:
        self._changed_blocks.clear()
        return right(self)

    patch.setattr(Scheduler, "schedule", wrong)


def adopts_a_block_without_telling_the_worker(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.adopt_cached

    def wrong(self: BlockManager, sequence: Sequence) -> list[int]:
        right(self, sequence)
        return []

    patch.setattr(BlockManager, "adopt_cached", wrong)


def resumes_before_the_newest_token_is_known(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Scheduler) -> Any:
        right(self)
        return self.waiting.first()

    right = Scheduler._next_waiting
    patch.setattr(Scheduler, "_next_waiting", wrong)


def forgets_a_preempted_sequence(patch: pytest.MonkeyPatch) -> None:
    right = WaitingQueue.add
    patch.setattr(WaitingQueue, "add", lambda self, sequence: None if sequence.num_preemptions else right(self, sequence))


def sends_prompt_logprobs_again_after_a_preemption(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler.update

    def wrong(self: Scheduler, step: Any, output: Any) -> Any:
        sent = {id(s): s.num_prompt_logprobs_sent for s in step.sequences}
        for sequence in step.sequences:
            sequence.num_prompt_logprobs_sent = 0
        outputs = right(self, step, output)
        for sequence in step.sequences:
            sequence.num_prompt_logprobs_sent += sent[id(sequence)]
        return outputs

    patch.setattr(Scheduler, "update", wrong)


def loses_a_copy_to_host_memory(patch: pytest.MonkeyPatch) -> None:
    right = HostCache.take_copies

    def wrong(self: HostCache) -> Any:
        leaving, arriving = right(self)
        return leaving[1:], arriving

    patch.setattr(HostCache, "take_copies", wrong)


def loses_a_copy_from_host_memory(patch: pytest.MonkeyPatch) -> None:
    right = HostCache.take_copies

    def wrong(self: HostCache) -> Any:
        leaving, arriving = right(self)
        return leaving, arriving[:-1]

    patch.setattr(HostCache, "take_copies", wrong)


def frees_a_host_block_before_the_step_has_read_it(patch: pytest.MonkeyPatch) -> None:
    early: list[tuple[int, int]] = []
    right = HostCache.take_copies

    def fetch(self: HostCache, host_block: int, device_block: int) -> None:
        early.append((host_block, device_block))
        self.let_go([host_block])

    def take_copies(self: HostCache) -> Any:
        leaving, _ = right(self)
        arriving = list(early)
        early.clear()
        return leaving, arriving

    patch.setattr(HostCache, "fetch", fetch)
    patch.setattr(HostCache, "take_copies", take_copies)


def copies_in_before_it_copies_out(patch: pytest.MonkeyPatch) -> None:
    right = Worker._swap

    def wrong(self: Worker, step: StepInput) -> None:
        right(self, msgspec.structs.replace(step, swap_outs=[]))
        right(self, msgspec.structs.replace(step, swap_ins=[]))

    patch.setattr(Worker, "_swap", wrong)


def computes_before_it_swaps(patch: pytest.MonkeyPatch) -> None:
    right = Worker.execute

    def wrong(self: Worker, step: StepInput) -> Any:
        output = right(self, msgspec.structs.replace(step, swap_outs=[], swap_ins=[]))
        self._swap(step)
        return output

    patch.setattr(Worker, "execute", wrong)


def swaps_out_what_an_earlier_step_left_in_another_block(patch: pytest.MonkeyPatch) -> None:
    right = HostCache.keep
    patch.setattr(HostCache, "keep", lambda self, device_block, content_hash: right(self, max(0, device_block - 1), content_hash))


def forgets_the_host_blocks_of_a_sequence_that_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockManager, "drop_swapped", lambda self, sequence: sequence.host_table.clear())


def resumes_a_swapped_sequence_one_token_too_far(patch: pytest.MonkeyPatch) -> None:
    right = BlockManager.swap_out

    def wrong(self: BlockManager, sequence: Sequence) -> bool:
        swapped = right(self, sequence)
        if swapped and sequence.num_computed_tokens % self.block_size and sequence.num_uncomputed_tokens > 1:
            sequence.num_computed_tokens += 1
        return swapped

    patch.setattr(BlockManager, "swap_out", wrong)


def pools_a_mean_over_what_the_cache_had_not(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sequence, "needs_every_prompt_token", property(lambda self: self.wants_prompt_logprobs))


def goes_on_with_a_swapped_mean_where_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sequence, "may_be_swapped", property(lambda self: self.search is None))


@pytest.mark.parametrize(
    "bug",
    [
        loses_a_reference,
        registers_a_block_before_it_is_computed,
        replaces_a_duplicate_while_it_is_being_written,
        gives_blocks_back_first_to_last,
        evicts_the_newest,
        finds_the_last_token_in_the_cache,
        shares_across_cache_salts,
        hashes_a_block_without_those_before_it,
        keeps_hits_for_requests_that_need_every_position,
        skips_a_copy,
        writes_to_a_block_that_siblings_share,
        copies_what_the_same_step_computes,
        lets_beams_take_over_one_after_the_other,
        tells_the_worker_nothing_of_beams_that_go_on_as_others,
        goes_on_with_a_preempted_search_where_it_was,
        tells_the_worker_nothing_of_replaced_blocks,
        adopts_a_block_without_telling_the_worker,
        resumes_before_the_newest_token_is_known,
        forgets_a_preempted_sequence,
        sends_prompt_logprobs_again_after_a_preemption,
        loses_a_copy_to_host_memory,
        loses_a_copy_from_host_memory,
        frees_a_host_block_before_the_step_has_read_it,
        copies_in_before_it_copies_out,
        computes_before_it_swaps,
        swaps_out_what_an_earlier_step_left_in_another_block,
        forgets_the_host_blocks_of_a_sequence_that_leaves,
        resumes_a_swapped_sequence_one_token_too_far,
        pools_a_mean_over_what_the_cache_had_not,
        goes_on_with_a_swapped_mean_where_it_was,
    ],
)
def test_the_simulation_finds_a_scheduler_that(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, LookupError)):
        run_many(300)


def run_many(num_seeds: int) -> None:
    for seed in range(num_seeds):
        run(seed, num_turns=60)

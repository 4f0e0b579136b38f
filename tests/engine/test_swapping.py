"""What swapping does to single sequences; the simulation asks what it does to any traffic."""

from __future__ import annotations

from engine.block_manager import BlockManager
from engine.host_cache import HostCache
from engine.messages import EngineRequest
from engine.preemption import Preemption, PreemptionMode
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus
from engine.step import StepOutput
from engine.step_builder import ScheduledStep


class Bench:
    """A scheduler over 8 blocks of 4 tokens, with host blocks behind them."""

    def __init__(self, num_host_blocks: int = 16, mode: PreemptionMode = "swap", enable_prefix_caching: bool = True) -> None:
        self.host = HostCache(num_host_blocks)
        self.manager = BlockManager(8, 4, enable_prefix_caching, salt=b"salt", host=self.host)
        self.scheduler = Scheduler(
            self.manager, max_num_seqs=4, token_budget=32, eos_token_ids=[], max_model_len=32, preemption=Preemption(mode, 4)
        )
        self.num_added = 0

    def add(self, name: str, prompt: list[int], max_tokens: int = 50) -> None:
        self.num_added += 1
        self.scheduler.add(
            EngineRequest(
                request_id=name,
                prompt_token_ids=prompt,
                params=SamplingParams(),
                seed=0,
                max_tokens=max_tokens,
                arrival=self.num_added,
            )
        )

    def schedule(self) -> ScheduledStep:
        step = self.scheduler.schedule()
        self.scheduler.check()
        assert step is not None
        return step

    def update(self, step: ScheduledStep) -> None:
        num_seqs = len(step.sequences)
        self.scheduler.update(
            step,
            StepOutput(
                token_ids=[[9] if samples else [] for samples in step.input.samples],
                logprobs=[None] * num_seqs,
                prompt_logprobs=[None] * num_seqs,
            ),
        )
        self.scheduler.check()

    def step(self) -> ScheduledStep:
        step = self.schedule()
        self.update(step)
        return step

    def step_until_preempted(self) -> ScheduledStep:
        while True:
            step = self.step()
            if self.scheduler.num_preemptions:
                return step


A, B = list(range(100, 114)), list(range(200, 214))  # 14 tokens each: the third token after them needs a fifth block


def swapped_bench(**settings: object) -> tuple[Bench, ScheduledStep]:
    """`b` has just been swapped out for `a`."""
    bench = Bench(**settings)  # type: ignore[arg-type]
    bench.add("a", A)
    bench.add("b", B)
    step = bench.step_until_preempted()
    return bench, step


def test_the_whole_table_leaves_in_the_step_that_gives_its_blocks_to_another() -> None:
    bench, step = swapped_bench()
    b = bench.scheduler.sequences["b"]
    assert b.status is SequenceStatus.WAITING
    assert b.is_swapped
    assert (b.block_table, b.slot) == ([], None)
    assert b.num_computed_tokens == 16
    assert [host_block for _, host_block in step.input.swap_outs] == b.host_table
    assert len(b.host_table) == 4
    assert (bench.scheduler.num_swaps, bench.scheduler.num_swapped) == (1, 1)


def test_a_swapped_sequence_comes_back_in_one_step_and_computes_only_its_newest_token() -> None:
    bench, _ = swapped_bench(enable_prefix_caching=False)
    table = list(bench.scheduler.sequences["b"].host_table)
    bench.scheduler.abort("a")
    step = bench.step()
    b = bench.scheduler.sequences["b"]
    assert step.input.swap_ins == list(zip(table, b.block_table[:4], strict=True))
    assert (step.input.starts, step.input.query_lens, step.input.samples) == ([16], [1], [True])
    assert step.input.new_sequences[0].token_ids == b.token_ids[:-1]
    assert (bench.scheduler.num_swapped, bench.host.num_held, bench.host.num_free) == (0, 0, 16)


def test_what_the_device_still_has_under_its_hash_is_not_copied_back() -> None:
    bench, _ = swapped_bench()
    bench.scheduler.abort("a")
    step = bench.step()
    assert step.input.query_lens == [1]
    # Its four blocks were full and known; one was evicted for `a`, the last, as it is in every chain.
    assert len(step.input.swap_ins) == 1


def test_an_aborted_sequence_gives_its_host_blocks_back() -> None:
    bench, _ = swapped_bench(enable_prefix_caching=False)
    assert bench.host.num_held == 4
    bench.scheduler.abort("b")
    bench.scheduler.check()
    assert (bench.host.num_held, bench.host.num_free, bench.scheduler.num_swapped) == (0, 16, 0)


def test_a_sequence_that_its_token_under_way_ends_gives_its_host_blocks_back() -> None:
    bench = Bench(enable_prefix_caching=False)
    bench.add("a", A)
    bench.add("b", B, max_tokens=3)
    bench.step()
    bench.step()
    under_way = bench.schedule()  # the third token of both is being computed
    bench.schedule()  # a fifth block for `a`
    b = bench.scheduler.sequences["b"]
    assert b.is_swapped
    assert b.num_pending_tokens == 1
    bench.update(under_way)
    assert "b" not in bench.scheduler.sequences
    assert bench.host.num_held == 0


def test_when_host_memory_is_full_the_sequence_is_computed_again() -> None:
    bench, step = swapped_bench(num_host_blocks=3, enable_prefix_caching=False)
    b = bench.scheduler.sequences["b"]
    assert not b.is_swapped
    assert b.num_computed_tokens == 0
    assert step.input.swap_outs == []
    assert (bench.scheduler.num_preemptions, bench.scheduler.num_swaps) == (1, 0)
    bench.scheduler.abort("a")
    assert bench.step().input.query_lens == [17]


def test_with_recompute_forced_nothing_is_swapped() -> None:
    bench, step = swapped_bench(mode="recompute", enable_prefix_caching=False)
    assert not bench.scheduler.sequences["b"].is_swapped
    assert step.input.swap_outs == []


def run_alone(bench: Bench, name: str, prompt: list[int]) -> list[ScheduledStep]:
    bench.add(name, prompt, max_tokens=1)
    steps = []
    while bench.scheduler.has_unfinished:
        steps.append(bench.step())
    return steps


def test_an_evicted_prefix_comes_back_from_host_memory_and_counts_as_cached() -> None:
    bench = Bench()
    first, second = list(range(20)), list(range(100, 128))
    run_alone(bench, "first", first)
    evicting = run_alone(bench, "second", second)[0].input
    assert len(evicting.swap_outs) == 4  # 7 blocks are needed, of 3 free ones
    bench.add("again", first, max_tokens=2)
    step = bench.step()
    again = bench.scheduler.sequences["again"]
    assert again.num_cached_tokens == 16
    assert step.input.query_lens == [4]
    # The device kept the chain's first block, the host has the rest.
    assert len(step.input.swap_ins) == 3
    assert bench.scheduler.num_prefix_hits == 16
    assert bench.scheduler.num_host_hits == 12


def test_content_that_came_back_is_shared_with_those_who_ask_for_it_next() -> None:
    bench = Bench()
    first = list(range(12))
    run_alone(bench, "first", first)
    run_alone(bench, "second", list(range(100, 131)))
    bench.add("x", [*first[:9], 50], max_tokens=2)
    bench.add("y", [*first[:9], 60], max_tokens=2)
    step = bench.step()
    x, y = bench.scheduler.sequences["x"], bench.scheduler.sequences["y"]
    assert len(step.input.swap_ins) == 2
    assert x.block_table[:2] == y.block_table[:2]


def test_a_reset_prefix_cache_is_forgotten_in_host_memory_too() -> None:
    bench = Bench()
    run_alone(bench, "first", list(range(20)))
    run_alone(bench, "second", list(range(100, 128)))
    assert bench.host.num_cached > 0
    bench.manager.reset_prefix_cache()
    assert bench.host.num_cached == 0
    assert run_alone(bench, "again", list(range(20)))[0].input.query_lens == [20]


def test_a_copy_to_a_block_that_was_given_back_since_does_not_overwrite_what_is_swapped_in_there() -> None:
    bench = Bench(enable_prefix_caching=False)
    manager = bench.manager
    parent, fork, swapped = (
        Sequence(EngineRequest(request_id=name, prompt_token_ids=A[:7], params=SamplingParams(), seed=0, max_tokens=8)) for name in "abc"
    )
    assert manager.admit(swapped)
    swapped.num_computed_tokens = 6
    assert manager.swap_out(swapped)
    manager.release(swapped)
    assert manager.admit(parent)
    parent.num_computed_tokens = 7
    assert manager.admit(fork, sibling=parent)
    copied = fork.block_table[-1]
    manager.release(fork)
    assert manager.admit(swapped)
    assert copied in [device_block for _, device_block in manager.take_swaps()[1]]
    assert manager.take_copies() == []

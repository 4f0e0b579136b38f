from __future__ import annotations

import sys
from typing import Any

import pytest

from engine.block_manager import BlockManager
from engine.messages import EngineRequest, SequenceOutput
from engine.outputs import Logprob, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import SequenceStatus
from engine.step import StepOutput
from engine.step_builder import ScheduledStep

BLOCK_SIZE = 4
EOS = 0


class Bench:
    """A scheduler, and the few words that a test of it needs."""

    def __init__(
        self, num_blocks: int = 64, max_num_seqs: int = 8, token_budget: int = 16, max_model_len: int = 100, **settings: Any
    ) -> None:
        self.manager = BlockManager(num_blocks, BLOCK_SIZE, salt=b"salt")
        self.scheduler = Scheduler(
            self.manager, max_num_seqs=max_num_seqs, token_budget=token_budget, eos_token_ids=[EOS], max_model_len=max_model_len, **settings
        )
        self.num_added = 0

    def add(
        self,
        name: str,
        prompt: int | list[int],
        max_tokens: int = 50,
        priority: int = 0,
        params: SamplingParams | None = None,
        tenant: str = "",
    ) -> None:
        """A prompt given as a number is of that length and like no other."""
        self.num_added += 1
        if isinstance(prompt, int):
            prompt = [1000 * self.num_added + i for i in range(prompt)]
        self.scheduler.add(
            EngineRequest(
                request_id=name,
                prompt_token_ids=prompt,
                params=params or SamplingParams(),
                seed=0,
                max_tokens=max_tokens,
                arrival=self.num_added,
                priority=priority,
                tenant=tenant,
            )
        )

    def schedule(self) -> ScheduledStep:
        step = self.scheduler.schedule()
        self.scheduler.check()
        assert step is not None
        return step

    def update(self, step: ScheduledStep, token: int = 7, logprobs: bool = False) -> list[SequenceOutput]:
        """Every sequence that samples gets `token`."""
        entry = [TokenLogprobs(Logprob(token, -1.0, 1), ())] if logprobs else None
        output = StepOutput(
            token_ids=[[token] if samples else [] for samples in step.input.samples],
            logprobs=[entry if samples else None for samples in step.input.samples],
            prompt_logprobs=[None] * len(step.sequences),
        )
        results = self.scheduler.update(step, output)
        self.scheduler.check()
        return results

    def step(self, token: int = 7) -> dict[str, int]:
        """One whole step. Returns how many tokens each sequence computed, in the order of the batch."""
        step = self.schedule()
        self.update(step, token)
        return lens(step)

    def names(self) -> list[str]:
        return [sequence.request_id for sequence in self.scheduler.running]


def lens(step: ScheduledStep) -> dict[str, int]:
    return {sequence.request_id: n for sequence, n in zip(step.sequences, step.input.query_lens, strict=True)}


# -- who runs, with how many tokens


def test_a_prompt_is_computed_whole_and_then_one_token_a_step() -> None:
    bench = Bench()
    bench.add("a", 10)
    assert [bench.step() for _ in range(3)] == [{"a": 10}, {"a": 1}, {"a": 1}]


def test_a_long_prompt_is_cut_into_chunks_of_the_budget_and_samples_only_with_its_last() -> None:
    bench = Bench(token_budget=16)
    bench.add("a", 40)
    samples = []
    for expected in (16, 16, 8):
        step = bench.schedule()
        assert lens(step) == {"a": expected}
        samples += step.input.samples
        bench.update(step)
    assert samples == [False, False, True]


def test_decodes_go_first_and_a_chunk_fills_what_they_leave() -> None:
    bench = Bench(token_budget=16)
    bench.add("a", 3)
    bench.add("b", 3)
    bench.step()
    bench.add("long", 60)
    for _ in range(3):
        assert list(bench.step().items()) == [("a", 1), ("b", 1), ("long", 14)]


def test_the_budget_is_shared_by_as_many_prompts_as_it_holds_in_order_of_arrival() -> None:
    bench = Bench(token_budget=16)
    for name, length in (("a", 6), ("b", 6), ("c", 6), ("d", 6)):
        bench.add(name, length)
    assert bench.step() == {"a": 6, "b": 6, "c": 4}
    assert bench.step() == {"a": 1, "b": 1, "c": 2, "d": 6}


def test_short_prompts_behind_a_long_one_get_their_first_token_in_their_first_step() -> None:
    bench = Bench(token_budget=16, long_prefill_token_threshold=8)
    bench.add("long", 40)
    bench.add("short", 6)
    bench.add("cut", 6)  # it would be the second that is partly computed
    bench.add("behind", 1)
    assert bench.step() == {"long": 8, "short": 6}
    assert bench.step() == {"short": 1, "long": 8, "cut": 6, "behind": 1}


def test_as_many_prompts_as_may_be_are_partly_computed_side_by_side_and_no_more() -> None:
    bench = Bench(token_budget=16, long_prefill_token_threshold=5, max_num_partial_prefills=2)
    for name in "abcd":
        bench.add(name, 12)
    assert bench.step() == {"a": 5, "b": 5}
    assert bench.step() == {"a": 5, "b": 5}
    assert bench.step() == {"a": 2, "b": 2, "c": 5, "d": 5}


def test_what_the_cache_holds_of_a_prompt_does_not_count_as_a_long_one() -> None:
    bench = Bench(token_budget=16, long_prefill_token_threshold=8)
    prompt = list(range(100, 112))
    bench.add("before", prompt, max_tokens=1)
    bench.step()
    bench.step()
    bench.add("long", 40)
    bench.add("known", [*prompt, 1])
    assert bench.step() == {"long": 8, "known": 1}


def test_no_more_sequences_run_than_there_are_slots() -> None:
    bench = Bench(max_num_seqs=2)
    for name in "abc":
        bench.add(name, 2, max_tokens=2)
    assert bench.step() == {"a": 2, "b": 2}
    assert bench.scheduler.num_waiting == 1
    assert bench.step() == {"a": 1, "b": 1}
    assert bench.step() == {"c": 2}


def test_priority_goes_before_arrival_and_arrival_before_sample_index() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("late", 2, max_tokens=1)
    bench.add("urgent", 2, max_tokens=1, priority=-1)
    bench.add("idle", 2, max_tokens=1, priority=5)
    bench.add("later", 2, max_tokens=1)
    assert [list(bench.step()) for _ in range(4)] == [["urgent"], ["late"], ["later"], ["idle"]]


def test_one_request_of_a_tenant_starts_at_the_first_free_slot_ahead_of_500_queued_ones_of_another() -> None:
    bench = Bench(max_num_seqs=2, policy="fair")
    for i in range(500):
        bench.add(f"many {i}", 2, max_tokens=2, tenant="many")
    bench.step()
    bench.add("one", 2, max_tokens=1, tenant="one")
    assert bench.step() == {"many 0": 1, "many 1": 1}
    assert bench.step() == {"one": 2, "many 2": 2}


def test_no_waiting_request_waits_for_ever_under_a_constant_flood_of_higher_priority() -> None:
    bench = Bench(num_blocks=10, max_num_seqs=4, max_model_len=30, max_overtakings=10)
    for i in range(8):
        bench.add(f"flood {i}", 3, max_tokens=6)
    bench.add("patient", 5, max_tokens=9, priority=10)
    num_steps = 0
    while "patient" in bench.scheduler.sequences:
        for _ in range(2):
            bench.add(f"flood {bench.num_added}", 3, max_tokens=6)
        bench.step()
        num_steps += 1
        assert num_steps < 100
    assert bench.scheduler.num_waiting > 10


def test_a_small_request_does_not_overtake_a_large_one_that_does_not_fit_yet() -> None:
    bench = Bench(num_blocks=20, token_budget=100, max_model_len=80)
    bench.add("running", 40, max_tokens=3)
    bench.step()
    bench.add("large", 60)
    bench.add("small", 2)
    assert bench.step() == {"running": 1}
    assert bench.step() == {"running": 1}  # its last
    assert bench.step() == {"large": 60, "small": 2}


def test_admission_leaves_blocks_for_the_running_ones_to_grow_into() -> None:
    bench = Bench(num_blocks=20, token_budget=100, max_model_len=80)
    bench.add("a", 8)
    bench.add("b", 8)
    assert bench.step() == {"a": 8, "b": 8}
    bench.add("c", 61)  # with the 16 blocks that it needs, none would be left
    assert bench.step() == {"a": 1, "b": 1}
    bench.scheduler.abort("c")
    bench.add("d", 45)
    assert bench.step() == {"a": 1, "b": 1, "d": 45}


def test_nothing_is_scheduled_when_there_is_nothing_to_do() -> None:
    assert Bench().scheduler.schedule() is None


# -- prefixes


def test_prompts_that_arrive_together_compute_their_common_prefix_once() -> None:
    bench = Bench(token_budget=64)
    prefix = list(range(100, 112))
    bench.add("a", [*prefix, 1, 2])
    bench.add("b", [*prefix, 3, 4])
    step = bench.schedule()
    assert lens(step) == {"a": 14, "b": 2}
    assert bench.scheduler.running[1].num_cached_tokens == 12
    assert (bench.scheduler.num_prompt_tokens, bench.scheduler.num_prefix_hits) == (28, 12)


def test_of_long_prompts_with_a_common_prefix_only_the_first_computes_it() -> None:
    bench = Bench(token_budget=20)
    prefix = list(range(100, 148))
    bench.add("first", [*prefix, 1])
    bench.add("second", [*prefix, 2])
    assert [bench.step() for _ in range(3)] == [{"first": 20}, {"first": 20}, {"first": 9, "second": 1}]


def test_prompts_in_lockstep_compute_their_common_prefix_once_and_each_goes_on_where_the_other_is() -> None:
    bench = Bench(token_budget=20, long_prefill_token_threshold=8, max_num_partial_prefills=2)
    prefix = list(range(100, 148))
    bench.add("first", [*prefix, 1])
    bench.add("second", [*prefix, 2])
    steps = [bench.step() for _ in range(4)]
    assert steps == [{"first": 8, "second": 8}, {"first": 8, "second": 8}, {"first": 8, "second": 8}, {"first": 1, "second": 1}]


# -- preemption


def test_the_sequence_that_would_go_last_gives_up_its_blocks_when_there_are_none() -> None:
    bench = Bench(num_blocks=6, token_budget=30, max_model_len=24)
    for name in "abc":
        bench.add(name, 7, max_tokens=12)
    bench.step()
    bench.step()
    assert bench.names() == ["a", "b", "c"]
    assert bench.step() == {"a": 1, "b": 1}  # each needs its third block: c's two
    victim = bench.scheduler.sequences["c"]
    assert (victim.status, victim.num_preemptions, victim.block_table) == (SequenceStatus.WAITING, 1, [])
    assert bench.scheduler.num_preemptions == 1


def test_the_victim_is_the_least_urgent_not_the_newest() -> None:
    bench = Bench(num_blocks=6, token_budget=30, max_model_len=24)
    for name, priority in (("a", 9), ("b", 0), ("c", 0)):
        bench.add(name, 7, max_tokens=12, priority=priority)
    bench.step()
    bench.step()
    assert bench.step() == {"b": 1, "c": 1}


def test_a_preempted_sequence_resumes_before_later_ones_with_all_its_tokens() -> None:
    bench = Bench(num_blocks=6, token_budget=30, max_model_len=24)
    for name in "abc":
        bench.add(name, 7, max_tokens=4)
    bench.add("d", 7, max_tokens=4)
    new = {}
    for _ in range(30):
        if not bench.scheduler.has_unfinished:
            break
        step = bench.schedule()
        for item in step.input.new_sequences:
            sequence = next(s for s in step.sequences if s.slot == item.slot)
            new.setdefault(sequence.request_id, []).append(item)
        bench.update(step)
    assert list(new) == ["a", "b", "c", "d"]
    assert bench.scheduler.num_preemptions > 0
    assert [len(item.token_ids) for item in new["c"]] == [7, 9]
    assert new["c"][1].token_ids[7:] == [7, 7]


def test_a_sequence_preempted_with_a_token_under_way_waits_until_it_is_known() -> None:
    bench = Bench(num_blocks=4, token_budget=30, max_model_len=16)
    bench.add("a", 7, max_tokens=9)
    bench.add("b", 7, max_tokens=9)
    bench.step()
    first = bench.schedule()  # position 7 of both: fills their blocks
    second = bench.schedule()  # a needs a third block, b's are taken, and what b draws in `first` is not known yet
    assert lens(second) == {"a": 1}
    assert bench.scheduler.sequences["b"].num_pending_tokens == 1
    assert bench.scheduler._next_waiting() is None
    outputs = bench.update(first)
    assert {o.request_id: o.new_token_ids for o in outputs} == {"a": [7], "b": [7]}
    assert bench.scheduler._next_waiting() is bench.scheduler.sequences["b"]


# -- pipelining


def test_a_step_is_scheduled_while_the_tokens_that_it_feeds_on_are_being_computed() -> None:
    bench = Bench()
    bench.add("a", 3, max_tokens=3)
    steps = [bench.schedule(), bench.schedule(), bench.schedule()]
    assert [step.input.starts for step in steps] == [[0], [3], [4]]
    assert bench.scheduler.schedule() is None  # max_tokens bounds it, whatever the values will be
    outputs = [bench.update(step)[0] for step in steps]
    assert [o.finish_reason for o in outputs] == [None, None, "length"]


def test_a_step_that_was_under_way_when_its_sequence_ended_gives_no_output() -> None:
    bench = Bench()
    bench.add("a", 3)
    first, second = bench.schedule(), bench.schedule()
    assert bench.update(first, token=EOS)[0].finish_reason == "stop"
    assert bench.update(second) == []
    assert bench.manager.num_referenced == 0


# -- the end


def test_a_sequence_ends_at_eos_at_a_stop_token_and_at_max_tokens() -> None:
    bench = Bench()
    bench.add("eos", 3)
    bench.add("stop", 3, params=SamplingParams(stop_token_ids=(9,)))
    bench.add("length", 3, max_tokens=1)
    step = bench.schedule()
    output = StepOutput(token_ids=[[EOS], [9], [5]], logprobs=[None] * 3, prompt_logprobs=[None] * 3)
    results = {o.request_id: (o.finish_reason, o.stop_reason) for o in bench.scheduler.update(step, output)}
    assert results == {"eos": ("stop", None), "stop": ("stop", 9), "length": ("length", None)}
    assert not bench.scheduler.has_unfinished


def test_an_ignored_eos_does_not_end_a_sequence_nor_does_one_before_min_tokens() -> None:
    bench = Bench()
    bench.add("ignores", 3, params=SamplingParams(ignore_eos=True))
    bench.add("waits", 3, params=SamplingParams(min_tokens=2))
    assert [bench.step(token=EOS) for _ in range(3)] == [{"ignores": 3, "waits": 3}, {"ignores": 1, "waits": 1}, {"ignores": 1, "waits": 1}]
    assert bench.names() == ["ignores"]


def test_tokens_after_the_one_that_ends_a_sequence_are_dropped_with_their_log_probabilities() -> None:
    bench = Bench()
    bench.add("a", 3)
    entries = [TokenLogprobs(Logprob(token, -1.0, 1), ()) for token in (5, EOS, 6)]
    output = StepOutput(token_ids=[[5, EOS, 6]], logprobs=[entries], prompt_logprobs=[None])
    result = bench.scheduler.update(bench.schedule(), output)[0]
    assert result.new_token_ids == [5, EOS]
    assert result.logprobs == entries[:2]


def test_the_context_length_ends_a_sequence() -> None:
    bench = Bench(max_model_len=6)
    bench.add("a", 3, max_tokens=50)
    reasons = [bench.update(bench.schedule())[0].finish_reason for _ in range(3)]
    assert reasons == [None, None, "length"]


# -- aborts


def test_an_aborted_sequence_is_in_no_later_step_and_its_blocks_are_free() -> None:
    bench = Bench()
    bench.add("a", 30)
    bench.add("b", 3)
    bench.step()  # a is half computed, b waits
    assert bench.scheduler.abort("a")
    bench.scheduler.check()
    assert bench.step() == {"b": 3}
    assert bench.scheduler.abort("b")
    assert bench.manager.num_referenced == 0
    assert not bench.scheduler.abort("b")
    assert bench.scheduler.schedule() is None


def test_a_waiting_a_preempted_and_an_unknown_sequence_can_be_aborted() -> None:
    bench = Bench(num_blocks=6, token_budget=30, max_model_len=24)
    for name in "abcd":
        bench.add(name, 7, max_tokens=12)
    for _ in range(3):
        bench.step()
    assert bench.scheduler.sequences["c"].num_preemptions == 1
    assert bench.scheduler.abort("c")
    assert bench.scheduler.abort("d")
    assert not bench.scheduler.abort("nobody")
    bench.scheduler.check()
    assert bench.scheduler.num_waiting == 0
    while bench.scheduler.has_unfinished:
        assert set(bench.step()) <= {"a", "b"}


def test_clients_that_come_and_go_leave_nothing_in_the_queue() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("running", 3)
    bench.step()
    bench.add("first", 3)
    for i in range(200):
        bench.add(f"{i}", 3)
        bench.scheduler.abort(f"{i}")
        bench.scheduler.check()
    assert bench.scheduler.num_waiting == 1
    assert len(bench.scheduler.waiting._by_arrival._heap) <= 3
    bench.scheduler.abort("running")
    assert bench.step() == {"first": 3}


@pytest.mark.parametrize("resumed", [False, True])
def test_an_abort_while_its_step_is_under_way_is_quiet_and_the_name_can_be_used_again(resumed: bool) -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 3)
    if resumed:
        bench.step()
    under_way = bench.schedule()
    assert bench.scheduler.abort("a")
    bench.add("a", 5)
    following = bench.schedule()
    assert bench.update(under_way) == []
    assert [o.new_token_ids for o in bench.update(following)] == [[7]]


# -- cost


def test_a_step_looks_at_the_head_of_the_queue_not_at_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    right = BlockManager.admit

    def counted(self: BlockManager, *args: object) -> bool:
        nonlocal tries
        tries += 1
        return right(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockManager, "admit", counted)
    bench = Bench(num_blocks=25, token_budget=100)
    for i in range(500):
        bench.add(f"{i}", 40)
    bench.step()
    before = tries
    bench.step()
    assert tries - before <= 1


def calls_of_a_decode_step(num_running: int, num_waiting: int = 0, context: int = 9) -> int:
    """Python functions that the scheduler calls to schedule one step and to take its results."""
    bench = Bench(num_blocks=num_running * (context + 20), max_num_seqs=num_running, token_budget=num_running * context)
    for i in range(num_running + num_waiting):
        bench.add(f"{i}", context)
    bench.step()
    num_calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        step = bench.scheduler.schedule()
        assert step is not None
        bench.scheduler.update(step, StepOutput([[7]] * num_running, [None] * num_running, [None] * num_running))
    finally:
        sys.setprofile(None)
    assert bench.scheduler.num_waiting == num_waiting
    return num_calls


def test_a_steps_cost_is_linear_in_the_running_sequences_and_does_not_depend_on_waiting_ones_or_on_the_context() -> None:
    eight, sixteen, thirty_two = (calls_of_a_decode_step(n) for n in (8, 16, 32))
    assert thirty_two - sixteen == 2 * (sixteen - eight)
    assert calls_of_a_decode_step(8, num_waiting=1000) == eight
    assert calls_of_a_decode_step(8, context=89) == eight

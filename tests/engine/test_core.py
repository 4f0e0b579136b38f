from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from simulated_worker import EOS, Worker, tokens_alone

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executor import WorkerInfo
from engine.messages import EngineRequest, SequenceOutput
from engine.model_config import ModelConfig, RopeConfig
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput

MODEL = ModelConfig("LlamaForCausalLM", 24, 8, 8, 1, 1, 1, 8, 1e-5, max_position_embeddings=64, rope=RopeConfig(), eos_token_ids=(EOS,))


class SimulatedExecutor:
    """Runs the worker that knows what every KV slot must hold."""

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.info = WorkerInfo(num_blocks=num_blocks, kernels="simulated", num_host_blocks=num_host_blocks)
        self.is_shut_down = False
        self.failure: Exception | None = None
        self.preparation: Future[None] | None = None  # what new requests wait for
        self._block_size = block_size
        self._worker = Worker(block_size)

    def prepare(self, params: SamplingParams) -> Future[None] | None:
        return self.preparation

    def execute(self, step: StepInput) -> Future[StepOutput]:
        future: Future[StepOutput] = Future()
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            future.set_result(self._worker.execute(step))
        return future

    def free_cache(self) -> None:
        self._worker = Worker(self._block_size)  # no slot holds anything

    def restore_cache(self) -> None:
        pass

    def shutdown(self) -> None:
        self.is_shut_down = True


def new_core(num_blocks: int = 40, num_host_blocks: int = 0, **settings: Any) -> tuple[EngineCore, SimulatedExecutor]:
    executor = SimulatedExecutor(num_blocks, block_size=4, num_host_blocks=num_host_blocks)
    return EngineCore(EngineConfig(block_size=4, max_num_batched_tokens=16, **settings), MODEL, executor), executor


def new_request(name: str, length: int = 10, max_tokens: int = 6, **others: object) -> EngineRequest:
    prompt = [(3 * i + sum(name.encode())) % 24 for i in range(length)]
    params = SamplingParams(ignore_eos=True)
    return EngineRequest(request_id=name, prompt_token_ids=prompt, params=params, seed=1, max_tokens=max_tokens, **others)  # type: ignore[arg-type]


def drain(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for item in core.step():
            tokens.setdefault(item.request_id, []).extend(item.new_token_ids)
        core.check()
    return tokens


def test_every_request_gets_its_tokens_however_many_there_are() -> None:
    core, _ = new_core()
    requests = [new_request(f"r{i}", length=3 + 5 * (i % 7), arrival=i) for i in range(30)]
    for request in requests:
        core.add_request(request)
    assert drain(core) == {request.request_id: tokens_alone(request)[0] for request in requests}
    assert core.stats().blocks_referenced == 0


def test_a_request_goes_on_in_another_engine_from_the_tokens_that_it_has() -> None:
    request = new_request("a", max_tokens=8)
    expected = tokens_alone(request)[0]
    core, _ = new_core()
    resumed = EngineRequest(**{name: getattr(request, name) for name in request.__struct_fields__} | {"generated_token_ids": expected[:3]})
    core.add_request(resumed)
    assert drain(core) == {"a": expected[3:]}


def test_requests_that_the_worker_gets_ready_for_wait_and_the_others_go_on() -> None:
    core, executor = new_core()
    executor.preparation = Future()
    for name in ("slow", "slow too", "given up"):
        core.add_request(new_request(name))
    executor.preparation, preparation = None, executor.preparation
    core.add_request(new_request("free"))
    core.abort_requests(["given up"])
    tokens: dict[str, list[int]] = {}
    while core.scheduler.has_unfinished:
        for item in core.step():
            tokens.setdefault(item.request_id, []).extend(item.new_token_ids)
    assert tokens == {"free": tokens_alone(new_request("free"))[0]}
    assert core.step() == []
    assert core.stats().num_waiting == 2
    preparation.set_exception(RuntimeError("comes again when they run"))
    assert drain(core) == {name: tokens_alone(new_request(name))[0] for name in ("slow", "slow too")}
    assert not core.has_work


def test_an_idle_engine_has_no_work_and_steps_to_nothing() -> None:
    core, _ = new_core()
    assert not core.has_work
    assert core.step() == []


def test_aborted_requests_are_gone_and_unknown_ones_are_ignored() -> None:
    core, _ = new_core()
    core.add_request(new_request("a"))
    core.add_request(new_request("b"))
    core.step()
    core.abort_requests(["a", "nobody"])
    assert set(drain(core)) == {"b"}
    core.abort_requests(["b"])


def test_a_step_that_fails_raises_what_the_worker_raised() -> None:
    core, executor = new_core()
    core.add_request(new_request("a"))
    executor.failure = RuntimeError("the worker died")
    with pytest.raises(RuntimeError, match="the worker died"):
        core.step()


def test_the_counts_are_those_of_what_was_done() -> None:
    core, _ = new_core(num_blocks=16)
    requests = [new_request(name, length=10, arrival=i) for i, name in enumerate(["a", "b", "a again"])]
    for request in requests:
        core.add_request(request)
    before = core.stats()
    assert (before.num_waiting, before.num_running, before.blocks_free, before.blocks_total) == (3, 0, 16, 16)
    core.step()
    assert core.stats().num_running == 2  # 16 tokens: one prompt and a part of the next
    assert core.stats().num_waiting == 1
    drain(core)
    stats = core.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (30, 18)
    assert (stats.num_running, stats.num_waiting, stats.blocks_referenced) == (0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == 16
    assert stats.steps_total > 6


def test_a_prompt_is_counted_once_however_often_it_is_preempted() -> None:
    core, _ = new_core(num_blocks=16)
    for i in range(6):
        core.add_request(new_request(f"r{i}", length=14, max_tokens=20, arrival=i))
    drain(core)
    assert core.stats().preemptions_total > 0
    assert core.stats().prompt_tokens_total == 6 * 14


def test_a_request_resumed_after_a_restart_is_not_counted_again_and_reports_no_cached_tokens() -> None:
    core, _ = new_core(num_blocks=16)
    for i in range(2):  # alike: the second finds what the first has written
        core.add_request(new_request("r" * (i + 1), length=8, max_tokens=9, arrival=i, generated_token_ids=[5, 6, 7]))
    outputs = []
    while core.has_work:
        outputs += core.step()
    assert outputs
    assert all(output.num_cached_tokens == 0 for output in outputs)
    assert core.stats().prompt_tokens_total == 0


def test_preemption_and_eviction_are_counted() -> None:
    core, _ = new_core(num_blocks=16)
    for i in range(6):
        core.add_request(new_request(f"r{i}", length=14, max_tokens=20, arrival=i))
    drain(core)
    assert core.stats().preemptions_total > 0
    assert core.stats().evictions_total > 0


def test_swaps_are_counted_by_steps_and_by_blocks() -> None:
    core, _ = new_core(num_blocks=16, num_host_blocks=100, preemption_mode="swap", enable_prefix_caching=False)
    requests = [new_request(f"r{i}", length=14, max_tokens=20, arrival=i) for i in range(6)]
    for request in requests:
        core.add_request(request)
    while not core.stats().num_swapped:
        core.step()
    assert core.stats().host_blocks_held > 0
    drain(core)
    stats = core.stats()
    assert stats.preemptions_swap_total == stats.preemptions_total > 0
    assert stats.swap_out_blocks_total == stats.swap_in_blocks_total > stats.swap_in_copies_total > 0
    assert stats.swap_out_copies_total <= stats.preemptions_swap_total
    assert (stats.num_swapped, stats.host_blocks_held, stats.host_blocks_cached, stats.host_blocks_total) == (0, 0, 0, 100)


def test_shared_references_and_unused_slots_are_those_of_the_block_tables() -> None:
    core, _ = new_core()
    shared = new_request("a", length=9).prompt_token_ids
    for i in range(2):
        core.add_request(
            EngineRequest(
                request_id=f"r{i}", prompt_token_ids=shared, params=SamplingParams(ignore_eos=True), seed=i, max_tokens=5, arrival=i
            )
        )
    core.step()
    stats = core.stats()
    assert stats.blocks_referenced == 4  # two full ones, and the third of each
    assert stats.shared_references == 2
    assert (stats.table_slots, stats.unused_slots) == (24, 6)
    drain(core)
    assert (core.stats().shared_references, core.stats().unused_slots) == (0, 0)


def test_a_prompt_found_in_the_cache_says_so_in_its_outputs() -> None:
    core, _ = new_core()
    core.add_request(new_request("a", length=10))
    drain(core)
    core.add_request(
        EngineRequest(request_id="b", prompt_token_ids=new_request("a").prompt_token_ids, params=SamplingParams(), seed=2, max_tokens=1)
    )
    outputs: list[SequenceOutput] = core.step()
    assert [output.num_cached_tokens for output in outputs] == [8]
    assert core.stats().prefix_cache_hits_total == 8


def test_utilities_are_called_by_name() -> None:
    core, _ = new_core()
    core.add_request(new_request("a"))
    drain(core)
    assert core.stats().blocks_cached > 0
    assert core.call("check") is None
    core.call("reset_prefix_cache")
    assert core.stats().blocks_cached == 0
    with pytest.raises(KeyError):
        core.call("no_such_thing")


def test_shutting_down_reaches_the_worker() -> None:
    core, executor = new_core()
    core.shutdown()
    assert executor.is_shut_down


def test_sequences_of_one_request_are_served_side_by_side() -> None:
    core, _ = new_core()
    requests = [new_request("same", sample_index=i) for i in range(4)]
    named = [EngineRequest(**{n: getattr(r, n) for n in r.__struct_fields__} | {"request_id": f"same#{i}"}) for i, r in enumerate(requests)]
    for request in named:
        core.add_request(request)
    tokens = drain(core)
    assert len({tuple(t) for t in tokens.values()}) == 4
    assert Counter(map(len, tokens.values())) == {6: 4}


def test_after_sleep_nothing_is_taken_from_the_cache() -> None:
    core, _ = new_core()
    core.add_request(new_request("a", length=20))
    first = drain(core)
    core.call("sleep")
    core.call("wake_up")
    core.add_request(new_request("a", length=20))
    assert drain(core) == first
    assert core.stats().prefix_cache_hits_total == 0


def test_an_engine_that_works_does_not_fall_asleep() -> None:
    core, _ = new_core()
    core.add_request(new_request("a"))
    with pytest.raises(RuntimeError, match="requests are running"):
        core.call("sleep")
    core.abort_requests(["a"])
    core.call("sleep")

"""Steps that are scheduled while others run, and the timeline that shows it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import msgspec
import pytest
from engine_settings import small_llm
from simulated_worker import tokens_alone
from test_core import MODEL, SimulatedExecutor, drain, new_request

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import CallResult
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput


class ThreadedExecutor(SimulatedExecutor):
    """Runs the simulated worker on a thread, each step for some milliseconds."""

    def __init__(self, num_blocks: int, seconds: float = 0.0) -> None:
        super().__init__(num_blocks, block_size=4)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._seconds = seconds

    def execute(self, step: StepInput) -> Future[StepOutput]:
        return self._thread.submit(self._run, step)

    def _run(self, step: StepInput) -> StepOutput:
        if self.failure is not None:
            raise self.failure
        started = time.monotonic()
        output = self._worker.execute(step)
        time.sleep(self._seconds)
        return msgspec.structs.replace(output, started=started, ended=time.monotonic())


def new_core(async_scheduling: bool, num_blocks: int = 40, seconds: float = 0.0) -> tuple[EngineCore, ThreadedExecutor]:
    executor = ThreadedExecutor(num_blocks, seconds)
    return EngineCore(EngineConfig(block_size=4, max_num_batched_tokens=16, async_scheduling=async_scheduling), MODEL, executor), executor


@pytest.mark.parametrize("num_blocks", [16, 40])
def test_every_request_gets_its_tokens_when_steps_overlap(num_blocks: int) -> None:
    core, _ = new_core(async_scheduling=True, num_blocks=num_blocks)
    requests = [new_request(f"r{i}", length=3 + 5 * (i % 7), max_tokens=20, arrival=i) for i in range(20)]
    for request in requests:
        core.add_request(request)
    assert drain(core) == {request.request_id: tokens_alone(request)[0] for request in requests}
    assert core.stats().blocks_referenced == 0


def test_a_step_is_scheduled_while_the_one_before_it_runs_and_only_then_when_asked_to() -> None:
    for async_scheduling in (True, False):
        core, _ = new_core(async_scheduling, seconds=0.005)
        for i in range(3):
            core.add_request(new_request(f"r{i}", max_tokens=20, arrival=i))
        drain(core)
        steps = core.call("timeline")
        pairs = list(pairwise(steps[1:]))  # the first two are scheduled before anything runs
        assert len(pairs) > 15
        for before, step in pairs:
            assert step.schedule_start <= step.schedule_end <= step.execute_start <= step.execute_end
            assert before.execute_end <= step.execute_start
        num_inside = sum(before.execute_start < step.schedule_start and step.schedule_end < before.execute_end for before, step in pairs)
        assert num_inside > len(pairs) / 2 if async_scheduling else num_inside == 0


def test_a_request_that_ends_at_eos_or_is_aborted_in_mid_step_gives_no_more_output() -> None:
    core, _ = new_core(async_scheduling=True)
    endless = new_request("endless", max_tokens=40)
    core.add_request(endless)
    core.add_request(msgspec.structs.replace(new_request("ends", max_tokens=40), params=SamplingParams()))
    outputs = core.step() + core.step()
    core.abort_requests(["endless"])
    while core.has_work:
        outputs += core.step()
        core.check()
    tokens = [token for output in outputs if output.request_id == "ends" for token in output.new_token_ids]
    assert tokens == tokens_alone(msgspec.structs.replace(new_request("ends", max_tokens=40), params=SamplingParams()))[0]
    assert len([output for output in outputs if output.request_id == "endless"]) == 2
    assert core.stats().blocks_referenced == 0


def test_a_worker_that_fails_on_its_thread_fails_the_step() -> None:
    core, executor = new_core(async_scheduling=True)
    core.add_request(new_request("a"))
    executor.failure = RuntimeError("the worker died")
    with pytest.raises(RuntimeError, match="the worker died"):
        core.step()


def test_the_timeline_says_who_computed_how_much_and_who_gave_way() -> None:
    core, _ = new_core(async_scheduling=False, num_blocks=16)
    for i in range(4):
        core.add_request(new_request(f"r{i}", length=14, max_tokens=20, arrival=i))
    drain(core)
    steps = core.call("timeline")
    assert (steps[0].request_ids, steps[0].num_tokens) == (["r0", "r1"], [14, 2])
    assert [step.index for step in steps] == list(range(len(steps)))
    preempted = [request_id for step in steps for request_id in step.preempted]
    assert preempted
    assert len(preempted) == core.stats().preemptions_total
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(CallResult(1, steps)), type=CallResult).value[0]["request_ids"] == ["r0", "r1"]


def test_the_timeline_keeps_the_latest_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.timeline.CAPACITY", 10)
    core, _ = new_core(async_scheduling=False)
    core.add_request(new_request("a", max_tokens=30))
    drain(core)
    assert [step.index for step in core.call("timeline")] == list(range(20, 30))


def test_the_real_worker_gives_the_same_tokens_on_a_thread_and_is_scheduled_ahead() -> None:
    prompts = [[7 + i, 8, 9] for i in range(5)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    plain, overlapped = (small_llm(async_scheduling=on) for on in (False, True))
    expected = plain.generate(prompts, params, use_tqdm=False)
    outputs = overlapped.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in expected]
    steps = overlapped.engine.call("timeline")
    ahead = [step.schedule_end < before.execute_end for before, step in pairwise(steps)]
    assert sum(ahead) > len(ahead) / 2
    overlapped.engine.shutdown()

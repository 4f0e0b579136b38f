"""EngineCore: the step loop. Schedule, execute, update; then again, for as long as there is work."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.executor import Executor, PendingStep
from engine.host_cache import HostCache
from engine.messages import EngineRequest, SequenceOutput
from engine.model_config import ModelConfig, resolve_max_model_len
from engine.preemption import Preemption
from engine.profiler import Profiler
from engine.scheduler import Scheduler
from engine.snapshot import snapshot
from engine.stats import STEP_TOKEN_BUCKETS, EngineStats
from engine.step import StepOutput
from engine.step_builder import ScheduledStep
from engine.timeline import Timeline

_PATIENCE = 0.005  # seconds that a step without work waits for a request to be ready


@dataclass(frozen=True)
class _UnderWay:
    """A step that the executor has been given."""

    step: ScheduledStep
    pending: PendingStep
    schedule_start: float  # time.monotonic()
    schedule_end: float


class EngineCore:
    """From requests of token ids to new tokens, one step at a time. It holds no tensors: those are the executor's."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig, executor: Executor) -> None:
        self._executor = executor
        info = executor.info
        self.block_manager = BlockManager(
            info.num_blocks, config.block_size, config.enable_prefix_caching, host=HostCache(info.num_host_blocks)
        )
        self._preemption = Preemption(config.preemption_mode, config.block_size)
        self.scheduler = Scheduler(
            self.block_manager,
            max_num_seqs=config.seq_budget,
            token_budget=config.token_budget,
            eos_token_ids=model_config.eos_token_ids,
            max_model_len=resolve_max_model_len(config, model_config),
            policy=config.scheduling_policy,
            max_overtakings=config.max_overtakings,
            max_num_partial_prefills=config.max_num_partial_prefills,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            preemption=self._preemption,
        )
        self._depth = 2 if config.overlaps_steps else 1  # steps that may be under way at once
        self._under_way: deque[_UnderWay] = deque()
        self._preparing: list[tuple[Future[None], EngineRequest]] = []  # that the executor gets ready for, in order of arrival
        self._timeline = Timeline()
        self._stats = EngineStats(
            blocks_total=info.num_blocks, host_blocks_total=info.num_host_blocks, steps_by_tokens=[0] * (len(STEP_TOKEN_BUCKETS) + 1)
        )
        profiler = Profiler(config.profile_dir)
        self._utilities: dict[str, Callable[[], Any]] = {
            "check": self.check,
            "reset_prefix_cache": self.block_manager.reset_prefix_cache,
            "sleep": self.sleep,
            "wake_up": self._executor.restore_cache,
            "timeline": self._timeline.records,
            "start_profile": profiler.start,
            "stop_profile": profiler.stop,
            "snapshot": lambda: snapshot(self.scheduler),
        }

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_unfinished or bool(self._under_way) or bool(self._preparing)

    def add_request(self, request: EngineRequest) -> None:
        preparation = self._executor.prepare(request.params)
        if preparation is None:
            self.scheduler.add(request)
        else:
            self._preparing.append((preparation, request))

    def abort_requests(self, request_ids: list[str]) -> None:
        gone = set(request_ids)
        self._preparing = [entry for entry in self._preparing if entry[1].request_id not in gone]
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def step(self) -> list[SequenceOutput]:
        """The results of one step. Where steps overlap, the next one has been scheduled while it ran, and runs from now on."""
        self._add_prepared()
        while len(self._under_way) < self._depth and self._launch():
            pass
        if not self._under_way:
            # Not for long: other requests may arrive.
            wait([preparation for preparation, _ in self._preparing], _PATIENCE, FIRST_COMPLETED)
            return []
        done = self._under_way.popleft()
        output = done.pending.result()
        back = time.monotonic()
        outputs = self.scheduler.update(done.step, output)
        self._stats.update_seconds_total += time.monotonic() - back
        self._timeline.record(done.step, done.schedule_start, done.schedule_end, output)
        self._preemption.measure(done.step.input, output)
        self._count(done, output, outputs)
        return outputs

    def stats(self) -> EngineStats:
        """The state of queues and blocks now, and the counts so far."""
        stats, scheduler, blocks = self._stats, self.scheduler, self.block_manager
        stats.num_running, stats.num_waiting = len(scheduler.running), scheduler.num_waiting + len(self._preparing)
        stats.blocks_referenced, stats.blocks_cached, stats.blocks_free = blocks.num_referenced, blocks.num_cached, blocks.num_free
        stats.prompt_tokens_total, stats.prefix_cache_hits_total = scheduler.num_prompt_tokens, scheduler.num_prefix_hits
        stats.preemptions_total, stats.evictions_total = scheduler.num_preemptions, blocks.num_evictions
        num_references = sum(len(sequence.block_table) for sequence in scheduler.running)
        stats.shared_references = num_references - blocks.num_referenced
        stats.table_slots = num_references * blocks.block_size
        stats.unused_slots = stats.table_slots - sum(sequence.num_computed_tokens for sequence in scheduler.running)
        host = blocks.host
        stats.num_swapped, stats.preemptions_swap_total = scheduler.num_swapped, scheduler.num_swaps
        stats.host_blocks_held, stats.host_blocks_cached = host.num_held, host.num_cached
        stats.prefix_cache_host_hits_total, stats.host_evictions_total = scheduler.num_host_hits, host.num_evictions
        return stats

    def call(self, method: str) -> Any:
        """Run a utility by its name. Raises KeyError if there is none."""
        return self._utilities[method]()

    def check(self) -> None:
        """Verify every invariant of scheduler and blocks. Raises AssertionError."""
        self.scheduler.check()

    def sleep(self) -> None:
        """Give the KV cache's memory back until `wake_up`. Raises RuntimeError while requests run or wait."""
        if self.scheduler.has_unfinished or self._preparing:
            raise RuntimeError("requests are running")
        while self._under_way:  # what is left of aborted ones
            self.step()
        self.block_manager.reset_prefix_cache()
        self._executor.free_cache()

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _add_prepared(self) -> None:
        """Hand over the requests that the executor is now ready for."""
        waiting = []
        for preparation, request in self._preparing:
            if preparation.done():
                self.scheduler.add(request)
            else:
                waiting.append((preparation, request))
        self._preparing = waiting

    def _launch(self) -> bool:
        """Give the executor another step, if there is one."""
        start = time.monotonic()
        step = self.scheduler.schedule()
        if step is None:
            return False
        end = time.monotonic()
        for sequence in step.sequences:
            if sequence.first_scheduled is None:
                sequence.first_scheduled = start
        self._under_way.append(_UnderWay(step, self._executor.execute(step.input), start, end))
        return True

    def _count(self, done: _UnderWay, output: StepOutput, outputs: list[SequenceOutput]) -> None:
        stats, step = self._stats, done.step
        num_tokens = sum(step.input.query_lens)
        stats.steps_total += 1
        stats.step_tokens_total += num_tokens
        stats.steps_by_tokens[bisect_left(STEP_TOKEN_BUCKETS, num_tokens)] += 1
        stats.schedule_seconds_total += done.schedule_end - done.schedule_start
        stats.model_seconds_total += output.compute_seconds - output.sample_seconds
        stats.sample_seconds_total += output.sample_seconds
        for sequence_output in outputs:
            stats.generation_tokens_total += len(sequence_output.new_token_ids)
        stats.swap_out_copies_total += bool(step.input.swap_outs)
        stats.swap_out_blocks_total += len(step.input.swap_outs)
        stats.swap_in_copies_total += bool(step.input.swap_ins)
        stats.swap_in_blocks_total += len(step.input.swap_ins)
        stats.swap_seconds_total += output.swap_seconds

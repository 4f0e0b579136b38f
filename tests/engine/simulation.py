"""The real scheduler and block manager, driven by random traffic with a worker that knows what every KV slot must hold.

Every rule of the design is checked at every step, and each request must get the tokens that it gets alone.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import msgspec
from simulated_worker import EOS, VOCAB_SIZE, Worker, beams_alone, histories, tokens_alone, vector_alone

from engine.block_manager import BlockManager
from engine.host_cache import HostCache
from engine.messages import EngineRequest, SequenceOutput
from engine.outputs import TokenLogprobs
from engine.policies import POLICIES
from engine.pooling_params import PoolingParams
from engine.preemption import Preemption, PreemptionMode
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus
from engine.step_builder import ScheduledStep


@dataclass(frozen=True)
class Setting:
    """One engine to simulate."""

    block_size: int = 4
    num_blocks: int = 24
    max_num_seqs: int = 6
    token_budget: int = 12
    max_model_len: int = 40
    enable_prefix_caching: bool = True
    depth: int = 1  # steps under way at once
    policy: str = "priority"
    max_overtakings: int = 100
    max_num_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0
    share_of_searches: float = 0.25  # of the requests, where they fit: beam searches
    num_host_blocks: int = 0
    preemption_mode: PreemptionMode = "swap"

    @staticmethod
    def draw(rng: random.Random) -> Setting:
        block_size = rng.choice([1, 2, 4, 8])
        max_model_len = rng.randint(12, 60)
        least = -(-max_model_len // block_size)
        max_num_seqs = rng.randint(1, 8)
        return Setting(
            block_size=block_size,
            num_blocks=least + rng.choice([0, 0, 1, 3, least, 4 * least]),
            max_num_seqs=max_num_seqs,
            token_budget=max_num_seqs + rng.choice([0, 1, 5, 20, 100]),
            max_model_len=max_model_len,
            enable_prefix_caching=rng.random() < 0.8,
            depth=rng.choice([1, 1, 2, 3]),
            policy=rng.choice(list(POLICIES)),
            max_overtakings=rng.choice([0, 1, 3, 100]),
            max_num_partial_prefills=rng.choice([1, 1, 2, 4]),
            long_prefill_token_threshold=rng.choice([0, 0, 1, 3, 8]),
            num_host_blocks=rng.choice([0, 0, 1, 3, least, 3 * least, 10 * least]),
            preemption_mode=rng.choice(["swap", "swap", "recompute"]),
        )


@dataclass
class Tracked:
    """A request and what has come back for it."""

    request: EngineRequest
    token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class UnderWay:
    step: ScheduledStep
    # (request id, token ids whose KV should be there once it is done, block table), for running and for swapped sequences
    claims: list[tuple[str, list[int], list[int]]]
    host_claims: list[tuple[str, list[int], list[int]]]


class Simulation:
    """Requests in, tokens out, every rule of the design checked on the way."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.host = HostCache(setting.num_host_blocks)
        self.manager = BlockManager(setting.num_blocks, setting.block_size, setting.enable_prefix_caching, b"fixed", self.host)
        self.scheduler = Scheduler(
            self.manager,
            max_num_seqs=setting.max_num_seqs,
            token_budget=setting.token_budget,
            eos_token_ids=[EOS],
            max_model_len=setting.max_model_len,
            policy=setting.policy,
            max_overtakings=setting.max_overtakings,
            max_num_partial_prefills=setting.max_num_partial_prefills,
            long_prefill_token_threshold=setting.long_prefill_token_threshold,
            preemption=Preemption(setting.preemption_mode, setting.block_size),
        )
        self.worker = Worker(setting.block_size)
        self.requests: dict[str, Tracked] = {}
        self.salts: dict[int, str | None] = {}  # of the sequence that wrote to the block last
        self.host_salts: dict[int, str | None] = {}
        self.under_way: deque[UnderWay] = deque()
        self.num_steps = 0
        self.num_checks = 0
        self.num_copies = 0
        self.num_swapped_blocks = 0

    @property
    def unfinished(self) -> list[str]:
        return [request_id for request_id, tracked in self.requests.items() if tracked.finish_reason is None]

    def check(self) -> None:
        """Every invariant of scheduler and block manager, in full."""
        self.scheduler.check()
        self.num_checks += 1

    def add(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        max_tokens: int = 8,
        seed: int = 0,
        sample_index: int = 0,
        group_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str | None = None,
        num_resumed: int = 0,
        pooling: PoolingParams | None = None,
    ) -> str:
        """`num_resumed` of the tokens that it must generate were delivered by an engine before this one."""
        request = EngineRequest(
            request_id=f"r{len(self.requests)}",
            prompt_token_ids=prompt,
            params=params or SamplingParams(),
            seed=seed,
            sample_index=sample_index,
            group_id=group_id,
            max_tokens=1 if pooling is not None else max(1, min(max_tokens, self.setting.max_model_len - len(prompt))),
            arrival=len(self.requests),
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            pooling=pooling,
        )
        delivered = [] if request.params.use_beam_search else tokens_alone(request)[0][:-1][:num_resumed]
        request = EngineRequest(**{name: getattr(request, name) for name in request.__struct_fields__} | {"generated_token_ids": delivered})
        self.requests[request.request_id] = Tracked(request, list(delivered))
        self.scheduler.add(request)
        self.check()
        return request.request_id

    def abort(self, request_id: str) -> None:
        request = self.requests[request_id].request
        assert self.scheduler.abort(request_id) == (self.requests[request_id].finish_reason is None)
        together = self.group(request.group_id) if request.params.use_beam_search and request.group_id else [request_id]
        for leaver in together:
            if self.requests[leaver].finish_reason is None:
                self.requests[leaver].finish_reason = "abort"
        self.check()

    def group(self, group_id: str | None) -> list[str]:
        return [request_id for request_id, tracked in self.requests.items() if tracked.request.group_id == group_id]

    def schedule(self) -> ScheduledStep | None:
        decoding = [s for s in self.scheduler.running if s.is_decoding and not s.reached_max_tokens]
        step = self.scheduler.schedule()
        self.check()
        if step is None:
            assert not decoding or all(s.status is SequenceStatus.WAITING for s in decoding)
            return None
        for sequence in decoding:
            # A beam may be that of a search which was preempted and has begun again.
            given_up = sequence.status is SequenceStatus.WAITING or sequence.is_paused
            assert sequence in step.sequences or given_up, "a decode was left out"
        self._check_step(step)
        claims = [self._claim(sequence, sequence.block_table) for sequence in self.scheduler.running]
        swapped = [sequence for sequence in self.scheduler.sequences.values() if sequence.is_swapped]
        self.under_way.append(UnderWay(step, claims, [self._claim(sequence, sequence.host_table) for sequence in swapped]))
        self.num_swapped_blocks += len(step.input.swap_outs) + len(step.input.swap_ins)
        return step

    def update(self) -> list[SequenceOutput]:
        """Run the oldest step under way and give its results to the scheduler."""
        oldest = self.under_way.popleft()
        output = self.worker.execute(oldest.step.input)
        self.num_steps += 1
        self.num_copies += len(oldest.step.input.block_copies)
        for claims, contents in ((oldest.claims, self.worker.contents), (oldest.host_claims, self.worker.host_contents)):
            for request_id, token_ids, block_table in claims:
                for position, history in enumerate(histories(token_ids)):
                    place = (block_table[position // self.setting.block_size], position % self.setting.block_size)
                    assert contents.get(place) == history, f"position {position} of {request_id} is not in {place}"
        outputs = self.scheduler.update(oldest.step, output)
        self.check()
        for item in outputs:
            self._take(item)
        return outputs

    def tick(self) -> None:
        """One turn of an engine's loop that keeps up to `depth` steps under way."""
        scheduled = self.schedule() is not None
        if len(self.under_way) >= self.setting.depth or (not scheduled and self.under_way):
            self.update()

    def drain(self) -> None:
        """Run until all is finished; fails if that takes longer than any fair schedule could."""
        work = sum(len(t.request.prompt_token_ids) + t.request.max_tokens for t in self.requests.values())
        bound = self.num_steps + 10 * (work + 10)
        while self.scheduler.has_unfinished or self.under_way:
            before = self.num_steps, len(self.under_way)
            self.tick()
            assert (self.num_steps, len(self.under_way)) != before, "nothing can run, but requests are waiting"
            assert self.num_steps < bound, f"{self.unfinished} starve"
        assert not self.unfinished
        assert self.manager.num_referenced == 0, "a block leaked"
        assert self.manager.num_free + self.manager.num_cached == self.manager.num_blocks
        assert self.setting.enable_prefix_caching or self.manager.num_cached == self.host.num_cached == 0
        assert self.host.num_held == 0, "a host block leaked"

    def _check_step(self, step: ScheduledStep) -> None:
        lens, size = step.input.query_lens, self.setting.block_size
        assert sum(lens) <= self.setting.token_budget
        assert len(lens) <= self.setting.max_num_seqs
        num_partial = sum(sequence.is_prefilling for sequence in self.scheduler.running)
        assert num_partial <= self.setting.max_num_partial_prefills, "too many prompts are half computed"
        threshold = self.setting.long_prefill_token_threshold
        assert not threshold or max(lens) <= threshold, "a chunk is longer than it may be"
        for device_block, host_block in step.input.swap_outs:
            self.host_salts[host_block] = self.salts.get(device_block)
        for host_block, device_block in step.input.swap_ins:
            self.salts[device_block] = self.host_salts.get(host_block)
        holders: dict[int, list[Sequence]] = {}
        for sequence in self.scheduler.running:
            for block_id in sequence.block_table:
                holders.setdefault(block_id, []).append(sequence)
        for sequence, start, query_len in zip(step.sequences, step.input.starts, lens, strict=True):
            end = start + query_len
            for index in range(start // size, -(-end // size)):
                block_id = sequence.block_table[index]
                # Others may hold it only if this step fills it: they attend to it after it is written.
                assert holders[block_id] == [sequence] or end >= (index + 1) * size, f"block {block_id} is shared and written"
                self.salts[block_id] = sequence.request.cache_salt
        for sequence in self.scheduler.running:
            for block_id in sequence.block_table[: self.manager.num_blocks_for(sequence.num_computed_tokens)]:
                assert self.salts[block_id] == sequence.request.cache_salt, f"block {block_id} is shared across cache salts"

    @staticmethod
    def _claim(sequence: Sequence, table: list[int]) -> tuple[str, list[int], list[int]]:
        return sequence.request_id, sequence.token_ids[: sequence.num_computed_tokens], list(table)

    @staticmethod
    def _expected(request: EngineRequest) -> tuple[list[int], str]:
        return beams_alone(request)[request.sample_index] if request.params.use_beam_search else tokens_alone(request)

    def _take(self, item: SequenceOutput) -> None:
        tracked = self.requests[item.request_id]
        assert tracked.finish_reason is None, "an output after the end"
        if tracked.request.pooling is not None:
            tracked.finish_reason = item.finish_reason
            assert (item.finish_reason, item.new_token_ids) == ("stop", [])
            assert item.embedding == vector_alone(tracked.request.prompt_token_ids), f"{item.request_id} got another vector than alone"
            return
        tracked.token_ids.extend(item.new_token_ids)
        tracked.prompt_logprobs.extend(item.prompt_logprobs or [])
        if item.finish_reason is not None:
            tracked.finish_reason = item.finish_reason
        expected, reason = self._expected(tracked.request)
        assert tracked.token_ids == expected[: len(tracked.token_ids)], f"{item.request_id} got other tokens than alone"
        if item.finish_reason is not None:
            assert (tracked.token_ids, item.finish_reason) == (expected, reason), f"{item.request_id} ended otherwise than alone"
            assert (item.stop_reason is not None) == (reason == "stop" and expected[-1] in tracked.request.params.stop_token_ids)
        if tracked.request.params.prompt_logprobs is not None and item.new_token_ids:
            given = [entry.chosen.token_id for entry in tracked.prompt_logprobs]
            assert given == tracked.request.prompt_token_ids[1:], "a prompt log probability is lost or repeated"


class Traffic:
    """Random requests that share prefixes, continue finished ones, leave early, and ask for all that changes scheduling."""

    def __init__(self, simulation: Simulation, rng: random.Random) -> None:
        self.simulation = simulation
        self.rng = rng
        longest = simulation.setting.max_model_len - 1
        self._stems = [[rng.randrange(VOCAB_SIZE) for _ in range(longest)] for _ in range(3)]
        self._calm = rng.random() < 0.3  # some runs have no aborts, so that more requests reach their end

    def arrive(self) -> None:
        rng, longest = self.rng, self.simulation.setting.max_model_len - 1
        finished = [t for t in self.simulation.requests.values() if t.finish_reason in ("stop", "length")]
        if finished and rng.random() < 0.3:  # the next turn of a conversation
            last = rng.choice(finished)
            stem = last.request.prompt_token_ids + last.token_ids
        else:
            stem = rng.choice(self._stems)[: rng.randint(0, longest)]
        prompt = stem + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, 1, 5, 12]))]
        max_tokens = rng.choice([1, 2, 8, 30])
        params = SamplingParams(
            min_tokens=rng.choice([0, 0, 0, max_tokens // 2]),
            stop_token_ids=rng.choice([(), (), (3, 5)]),
            ignore_eos=rng.random() < 0.3,
            prompt_logprobs=rng.choice([None] * 5 + [0]),
        )
        if rng.random() < 0.15:
            pooling = PoolingParams(pooling=rng.choice(["mean", "last"]))
            self.simulation.add(prompt[: longest + 1] or [1], pooling=pooling, priority=rng.choice([0, 0, -1, 2]))
            return
        num_sequences = rng.choice([1, 1, 1, 2, 3, 5])
        if rng.random() < self.simulation.setting.share_of_searches and self._beams_fit(
            len(prompt[:longest] or [1]), max_tokens, num_sequences
        ):
            penalty, early_stopping = rng.choice([1.0, 0.0, 2.0, -1.0]), rng.choice([True, False, "never"])
            params = msgspec.structs.replace(
                params, use_beam_search=True, n=num_sequences, length_penalty=penalty, early_stopping=early_stopping
            )
        seed, tenant = rng.randrange(4), rng.choice(["", "", "a", "b", "c"])
        priority, cache_salt = rng.choice([0, 0, 0, -1, 2]), rng.choice([None, None, None, "a", "b"])
        for sample_index in range(num_sequences):
            self.simulation.add(
                prompt[:longest] or [1],
                # Prompt log probabilities are the same for all, so that only one sequence is asked for them.
                params if sample_index == 0 else msgspec.structs.replace(params, prompt_logprobs=None),
                max_tokens=max_tokens,
                seed=seed,
                sample_index=sample_index,
                group_id=None if num_sequences == 1 else f"of r{len(self.simulation.requests) - sample_index}",
                priority=priority,
                tenant=tenant,
                cache_salt=cache_salt,
                num_resumed=rng.choice([0, 0, 0, 0, 7]),
            )

    def _beams_fit(self, num_prompt_tokens: int, max_tokens: int, width: int) -> bool:
        """Whether a beam search would be let in."""
        setting = self.simulation.setting
        length = min(num_prompt_tokens + max_tokens, setting.max_model_len)
        return width <= setting.max_num_seqs and width * self.simulation.manager.num_blocks_for(length) <= setting.num_blocks

    def turn(self, arrival_rate: float) -> None:
        rng = self.rng
        if rng.random() < arrival_rate:
            self.arrive()
        if not self._calm and rng.random() < 0.04 and self.simulation.requests:
            leaver = rng.choice(self.simulation.unfinished or list(self.simulation.requests))
            group_id = self.simulation.requests[leaver].request.group_id
            # One of a group ends by itself when a stop string is found; all do when their client leaves.
            alone = group_id is None or rng.random() < 0.5
            for request_id in [leaver] if alone else self.simulation.group(group_id):
                self.simulation.abort(request_id)
        if rng.random() < 0.01:
            self.simulation.manager.reset_prefix_cache()
            self.simulation.check()
        self.simulation.tick()


def run(seed: int, num_turns: int, setting: Setting | None = None) -> Simulation:
    """One random run, drained at its end. What it raises says which step of which run it was."""
    rng = random.Random(seed)
    simulation = Simulation(setting or Setting.draw(rng))
    traffic = Traffic(simulation, rng)
    arrival_rate = rng.choice([0.1, 0.3, 0.8])
    try:
        for _ in range(num_turns):
            traffic.turn(arrival_rate)
        simulation.drain()
    except Exception as error:
        error.add_note(f"in step {simulation.num_steps} of the run with seed {seed} and {num_turns} turns, {simulation.setting}")
        raise
    return simulation

"""Scheduler: which sequences run in the next step, with how many tokens each.

Iteration-level scheduling (Yu et al., 2022) under one token budget for prefill and decode alike, so there are no phases: decodes go
first, one token each, and are never starved; a long prompt is cut into chunks that fill what the decodes leave (Agrawal et al., 2023).
When blocks run out, the sequence that would go last gives its own up: it is computed again later, or its KV waits in host memory.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from engine.beam_search import BeamSearch, BeamSearches
from engine.block_manager import BlockManager
from engine.messages import EngineRequest, SequenceOutput
from engine.outputs import FinishReason, TokenLogprobs
from engine.preemption import Preemption
from engine.sequence import Sequence, SequenceStatus
from engine.siblings import Siblings
from engine.step import StepOutput
from engine.step_builder import ScheduledStep, StepBuilder, new_sequence
from engine.waiting_queue import WaitingQueue


class Scheduler:
    """Holds every unfinished sequence, and decides step by step.

    `schedule` never reads a token that is still being computed, so it may be called again before `update` has been given the results of
    the step before. Steps must be executed, and given to `update`, in the order in which they were scheduled.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_seqs: int,
        token_budget: int,
        eos_token_ids: Iterable[int],
        max_model_len: int,
        policy: str = "priority",
        max_overtakings: int = 100,
        max_num_partial_prefills: int = 1,
        long_prefill_token_threshold: int = 0,
        preemption: Preemption | None = None,
    ) -> None:
        self.block_manager = block_manager
        self._preemption = preemption or Preemption(block_size=block_manager.block_size)
        self.token_budget = token_budget
        assert max_num_seqs <= token_budget, "each running sequence must be able to decode in every step"
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.max_num_partial_prefills = max_num_partial_prefills
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.eos_token_ids = frozenset(eos_token_ids)
        self.sequences: dict[str, Sequence] = {}  # all that have not finished, by request id
        self.running: list[Sequence] = []  # by rank: the last is the first to give way
        self.waiting = WaitingQueue(policy, max_overtakings)
        self.num_preemptions = 0
        self.num_swaps = 0  # of these, with the KV kept in host memory
        self.num_swapped = 0  # sequences whose KV is there now
        self.num_prompt_tokens = 0  # of requests that were admitted, each looked up in the prefix cache once
        self.num_prefix_hits = 0  # of these, found
        self.num_host_hits = 0  # of these, found in host memory only
        self._siblings = Siblings(block_manager)
        self._searches = BeamSearches(self.eos_token_ids)
        self._renewed: list[Sequence] = []  # beams that go on as others, of which the worker has yet to hear
        self._free_slots = list(range(self.max_num_seqs - 1, -1, -1))
        self._changed_blocks: list[tuple[Sequence, list[int]]] = []  # table entries that the worker has yet to hear of

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._siblings.held) + len(self._searches.held)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    # -- requests come and go --------------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        assert request.request_id not in self.sequences, f"request id {request.request_id!r} is in use"
        sequence = Sequence(request)
        self.sequences[request.request_id] = sequence
        if request.params.use_beam_search:
            if (search := self._searches.join(sequence)) is not None:
                self.waiting.add(search.leader)
        elif self._siblings.add(sequence):
            self.waiting.add(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a sequence; it is in no step scheduled from now on. False if there is none of that id (it may just have finished).

        All beams of a search go with one.
        """
        sequence = self.sequences.get(request_id)
        if sequence is None:
            return False
        self._finish(sequence, "abort", None)
        return True

    # -- one step --------------------------------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledStep | None:
        """The next step, its blocks obtained; None when nothing can run."""
        step = StepBuilder(self.running)
        budget = self.token_budget
        decoding, prefilling = self._sort_running()
        for sequence in decoding:
            if sequence.status is SequenceStatus.RUNNING and not sequence.reached_max_tokens:
                for member in self._grow_or_preempt(sequence, step):
                    self._schedule_chunk(member, 1, step)
                    budget -= 1
        for sequence in prefilling:
            if budget and sequence.status is SequenceStatus.RUNNING:
                budget -= self._prefill(sequence, budget, step)
        while budget and self._free_slots and (candidate := self._next_waiting()) is not None:
            if self._siblings.must_wait(candidate, step.num_written) or self._is_one_cut_too_many(candidate, budget, step):
                break
            if len(self._free_slots) < len(_together(candidate)) or not self._admit(candidate, step):
                break
            budget -= self._prefill(candidate, budget, step)
        if not step.sequences:
            return None
        for sequence, changed in self._changed_blocks:
            if sequence.status is SequenceStatus.RUNNING:
                step.update_blocks(sequence, changed)
        self._changed_blocks.clear()
        step.new_sequences += [new_sequence(s) for s in self._renewed if s.status is SequenceStatus.RUNNING and s.block_table]
        self._renewed.clear()
        return step.build(self.block_manager.take_copies(), *self.block_manager.take_swaps())

    def update(self, step: ScheduledStep, output: StepOutput) -> list[SequenceOutput]:
        """Take a step's results: append tokens, finish sequences, free or keep their blocks."""
        outputs = []
        searches: dict[BeamSearch, None] = {}
        for i, sequence in enumerate(step.sequences):
            sampled = step.input.samples[i]
            if sampled:
                sequence.num_pending_tokens -= 1
            if sequence.status is SequenceStatus.FINISHED:
                continue  # aborted, or ended by an earlier step, while this one was under way
            if i in output.errors:
                self._finish(sequence, "error", None)
                for member in _together(sequence):
                    outputs.append(SequenceOutput(request_id=member.request_id, finish_reason="error", error=output.errors[i]))
                continue
            if i in output.pooled:
                outputs.append(_pooled(sequence, output.pooled[i]))
                self._finish(sequence, "stop", None)
                continue
            prompt_logprobs = output.prompt_logprobs[i]
            if prompt_logprobs:  # those of a chunk that a preemption made it compute again were delivered already
                prompt_logprobs = prompt_logprobs[max(0, sequence.num_prompt_logprobs_sent - step.input.starts[i]) :]
            token_ids, logprobs = output.token_ids[i], output.logprobs[i]
            if sequence.search is not None:
                if logprobs and sequence.status is SequenceStatus.RUNNING:
                    sequence.search.note(sequence, logprobs[0])
                    searches[sequence.search] = None
                token_ids, logprobs = [], None  # it is the search that chooses
            result = self._take_results(sequence, token_ids, logprobs, prompt_logprobs)
            if result is not None:
                outputs.append(result)
        for search in searches:
            if search.may_advance and search.leader.status is SequenceStatus.RUNNING:
                outputs += self._advance(search)
        return outputs

    # -- parts of schedule -------------------------------------------------------------------------------------------------------------

    def _sort_running(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running sequences that decode, and those with a prompt to compute."""
        decoding, prefilling = [], []
        for sequence in self.running:
            if sequence.is_decoding:
                decoding.append(sequence)
            elif not sequence.is_paused:
                prefilling.append(sequence)
        return decoding, prefilling

    def _grow_or_preempt(self, sequence: Sequence, step: StepBuilder) -> list[Sequence]:
        """Room for the newest token of the sequence, and of all its search's beams, if need be taken from those that go last.

        Returns those that can be scheduled: beams all with the first of them. None: it was itself the last.
        """
        members = [sequence] if sequence.search is None else [beam for beam in sequence.search.beams if beam.block_table]
        if sequence is not members[0]:
            return []
        changes = []
        for member in members:
            while (changed := self.block_manager.grow(member)) is None:
                step.preempted.append(self.running[-1].request_id)
                self._preempt(self.running[-1])
                if sequence.status is not SequenceStatus.RUNNING:
                    return []
            changes.append(changed)
        for member, changed in zip(members, changes, strict=True):
            if changed:
                step.update_blocks(member, changed)
        return members

    def _prefill(self, sequence: Sequence, budget: int, step: StepBuilder) -> int:
        """Schedule the next chunk of a prompt, without what another one has computed since. Returns its length."""
        step.update_blocks(sequence, self.block_manager.adopt_cached(sequence))
        num_tokens = self._chunk_len(sequence.num_uncomputed_tokens, budget)
        self._schedule_chunk(sequence, num_tokens, step)
        return num_tokens

    def _chunk_len(self, num_uncomputed: int, budget: int) -> int:
        threshold = self.long_prefill_token_threshold
        return min(num_uncomputed, budget, threshold) if threshold else min(num_uncomputed, budget)

    def _is_one_cut_too_many(self, candidate: Sequence, budget: int, step: StepBuilder) -> bool:
        """Whether the candidate's prompt would be cut while as many as may be are cut already."""
        if self._chunk_len(candidate.num_tokens, budget) == candidate.num_tokens:
            return False
        if sum(s.is_prefilling for s in self.running) < self.max_num_partial_prefills:
            return False
        sibling = self._siblings.source(candidate, step.num_written)
        num_uncomputed = candidate.num_tokens - self.block_manager.num_tokens_to_share(candidate, sibling)
        return self._chunk_len(num_uncomputed, budget) < num_uncomputed

    def _schedule_chunk(self, sequence: Sequence, num_tokens: int, step: StepBuilder) -> None:
        start = sequence.num_computed_tokens
        sequence.num_computed_tokens += num_tokens
        samples = sequence.num_uncomputed_tokens == 0
        step.add(sequence, start, num_tokens, samples)
        if samples:
            sequence.num_pending_tokens += 1
        self.block_manager.register(sequence, step_done=False)

    def _next_waiting(self) -> Sequence | None:
        """The waiting sequence that goes first, if it may start."""
        sequence = self.waiting.first()
        # Preempted while its newest token was being computed: the worker can be told of it once that is known.
        return None if sequence is None or sequence.num_pending_tokens else sequence

    def _admit(self, sequence: Sequence, step: StepBuilder) -> bool:
        # Some blocks are left to the running ones, or a sequence admitted now would soon be preempted for them.
        num_spare = min(len(self.running), self.block_manager.num_blocks // 10)
        was_swapped = sequence.is_swapped
        sibling = self._siblings.source(sequence, step.num_written)
        if not self.block_manager.admit(sequence, num_spare, sibling):
            return False
        self.num_swapped -= was_swapped
        self.waiting.start(sequence)
        if sequence.num_cached_tokens is None and sibling is not None:
            sequence.num_cached_tokens = sibling.num_cached_tokens  # the request's prompt was looked up once
        elif sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = self._count_prefix_hit(sequence)
        step.num_written.pop(sequence.request_id, None)  # it may have been preempted by this very step
        for member in _together(sequence):
            member.slot = self._free_slots.pop()
            member.status = SequenceStatus.RUNNING
            member.rank = sequence.rank
            insort(self.running, member, key=lambda s: s.rank)
        step.new_sequences.append(new_sequence(sequence))
        return True

    def _count_prefix_hit(self, sequence: Sequence) -> int:
        """The prompt tokens that the cache held, at a sequence's first admission."""
        if sequence.request.generated_token_ids:
            return 0  # it was counted before the engine was restarted
        num_hit = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        self.num_prompt_tokens += sequence.num_prompt_tokens
        self.num_prefix_hits += num_hit
        self.num_host_hits += max(0, num_hit - (sequence.num_computed_tokens - sequence.num_host_hits))
        return num_hit

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and slot; it waits, and is computed again or swapped in (Kwon et al., 2023, section 4.5).

        A beam search begins again, and so does a mean over all tokens.
        """
        members = _together(sequence)
        may_swap = sequence.may_be_swapped and self._preemption.prefers_swap(sequence.num_computed_tokens)
        if may_swap and self.block_manager.swap_out(sequence):
            self.num_swaps += 1
            self.num_swapped += 1
        for member in members:
            self._leave_running(member)
            member.status = SequenceStatus.WAITING
        if sequence.search is not None:
            sequence.search.restart()
            self._renewed = [beam for beam in self._renewed if beam.search is not sequence.search]
        members[0].num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(members[0])

    # -- parts of update -------------------------------------------------------------------------------------------------------------

    def _advance(self, search: BeamSearch) -> list[SequenceOutput]:
        """One step of a search is done: its beams go on as it says, or it ends and each gives one of the best hypotheses."""
        num_cached_tokens = search.leader.num_cached_tokens or 0
        continuations = search.advance()
        if continuations:
            self._changed_blocks = [entry for entry in self._changed_blocks if entry[0].search is not search]
            self.block_manager.reassign([(beam, c.source) for beam, c in zip(search.beams, continuations, strict=False)])
            for unused in search.beams[len(continuations) :]:
                self.block_manager.release(unused)
            search.take(continuations)
            self._renewed += search.beams
            return []
        best = zip(search.beams, search.best(), strict=True)
        self._finish(search.leader, "stop", None)
        return [
            SequenceOutput(
                request_id=beam.request_id,
                new_token_ids=hypothesis.token_ids,
                logprobs=None if beam.request.params.logprobs is None else hypothesis.logprobs,
                finish_reason=hypothesis.finish_reason,
                stop_reason=hypothesis.stop_reason,
                num_cached_tokens=num_cached_tokens,
            )
            for beam, hypothesis in best
        ]

    def _take_results(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None,
        prompt_logprobs: list[TokenLogprobs] | None,
    ) -> SequenceOutput | None:
        num_known = len(sequence.token_ids)
        for token_id in token_ids:
            sequence.token_ids.append(token_id)
            self._check_end(sequence, token_id)
            if sequence.finish_reason is not None:
                break
        num_new = len(sequence.token_ids) - num_known
        if num_new:
            for held in self._siblings.release(sequence):
                self.waiting.add(held)
        if prompt_logprobs:
            sequence.num_prompt_logprobs_sent += len(prompt_logprobs)
        if sequence.status is SequenceStatus.RUNNING:
            changed = self.block_manager.register(sequence, step_done=True)
            if changed:
                self._changed_blocks.append((sequence, changed))
        if not num_new and not prompt_logprobs:
            return None
        result = SequenceOutput(
            request_id=sequence.request_id,
            new_token_ids=sequence.token_ids[num_known:],
            logprobs=None if logprobs is None else logprobs[:num_new],
            prompt_logprobs=prompt_logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            first_scheduled=sequence.first_scheduled if num_known == sequence.num_prompt_tokens else None,
        )
        if sequence.finish_reason is not None:
            self._finish(sequence, sequence.finish_reason, sequence.stop_reason)
        return result

    def _check_end(self, sequence: Sequence, token_id: int) -> None:
        params = sequence.request.params
        repeats = sequence.repetition is not None and sequence.repetition.append(token_id)
        num_generated = sequence.num_generated_tokens
        if num_generated > params.min_tokens:
            if token_id in params.stop_token_ids:
                sequence.finish_reason, sequence.stop_reason = "stop", token_id
                return
            if token_id in self.eos_token_ids and not params.ignore_eos:
                sequence.finish_reason = "stop"
                return
            if repeats:
                sequence.finish_reason = "repetition"
                return
        if num_generated >= sequence.request.max_tokens or len(sequence.token_ids) >= self.max_model_len:
            sequence.finish_reason = "length"

    def _finish(self, sequence: Sequence, reason: FinishReason, stop_reason: int | None) -> None:
        for member in _together(sequence):
            if member.status is SequenceStatus.RUNNING:
                self._leave_running(member)
            self.num_swapped -= member.is_swapped
            self.block_manager.drop_swapped(member)
            member.status = SequenceStatus.FINISHED
            member.finish_reason, member.stop_reason = reason, stop_reason
            del self.sequences[member.request_id]
        search = sequence.search
        if search is not None:
            self._searches.remove(search)
            if search.is_complete:
                self.waiting.finish(search.leader)
            return
        if not self._siblings.is_held(sequence):
            self.waiting.finish(sequence)
        for held in self._siblings.remove(sequence):
            self.waiting.add(held)

    def _leave_running(self, sequence: Sequence) -> None:
        self.block_manager.release(sequence)
        self.running.remove(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot = None

    def check(self) -> None:
        """Verify every invariant of the scheduler and of its block manager. Raises AssertionError with what is wrong."""
        assert self.running == sorted(self.running, key=lambda s: s.rank), "the running sequences are out of order"
        for sequence in self.running:
            assert sequence.status is SequenceStatus.RUNNING
            assert sequence.slot is not None
        slots = [s.slot for s in self.running if s.slot is not None]
        assert sorted(slots + self._free_slots) == list(range(self.max_num_seqs)), "a slot is lost or taken twice"
        waiting = {id(s) for s in [*self.waiting, *self._siblings.held, *self._searches.held]}
        assert len(waiting) + len(self.running) == len(self.sequences), "a sequence is lost"
        for sequence in self.sequences.values():
            waits = sequence.status is SequenceStatus.WAITING
            assert waits == (id(sequence) in waiting), f"{sequence.request_id} is in the wrong queue"
            assert not waits or (not sequence.block_table and sequence.slot is None), f"{sequence.request_id} waits but holds blocks"
        self._siblings.check(self.sequences)
        manager = self.block_manager
        assert manager.num_free + manager.num_referenced + manager.num_cached == manager.num_blocks
        swapped = [s for s in self.sequences.values() if s.is_swapped]
        assert all(s.status is SequenceStatus.WAITING for s in swapped), "a sequence is swapped out but does not wait"
        assert len(swapped) == self.num_swapped, "the count of swapped sequences is wrong"
        manager.check(self.running, swapped)


def _pooled(sequence: Sequence, embedding: bytes) -> SequenceOutput:
    num_cached_tokens = sequence.num_cached_tokens or 0
    return SequenceOutput(request_id=sequence.request_id, finish_reason="stop", embedding=embedding, num_cached_tokens=num_cached_tokens)


def _together(sequence: Sequence) -> list[Sequence]:
    """The sequence, or all beams of its search: they run, wait and end as one."""
    return [sequence] if sequence.search is None else sequence.search.beams

"""A step in the making: the scheduler's choices, sequence by sequence, become the lists that the worker is sent."""

from __future__ import annotations

from dataclasses import dataclass

from engine.host_cache import BlockPairs
from engine.sequence import Sequence
from engine.step import BlockUpdate, NewSequence, StepInput


@dataclass(frozen=True)
class ScheduledStep:
    """A step under way: what the worker was told, and whose it is."""

    input: StepInput
    sequences: list[Sequence]  # side by side with input.slots
    preempted: list[str]  # request ids of those that gave their blocks up for it


class StepBuilder:
    """Collects one step's lists."""

    def __init__(self, running: list[Sequence]) -> None:
        self.sequences: list[Sequence] = []
        self.preempted: list[str] = []
        self.new_sequences: list[NewSequence] = []
        self.block_updates: list[BlockUpdate] = []
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.query_lens: list[int] = []
        self.samples: list[bool] = []
        # Of sequences that siblings may fork from, by request id: how many leading tokens the steps before this one have computed.
        self.num_written = {s.request_id: s.num_computed_tokens for s in running if s.request.group_id is not None}

    def add(self, sequence: Sequence, start: int, num_tokens: int, samples: bool) -> None:
        assert sequence.slot is not None
        self.sequences.append(sequence)
        self.slots.append(sequence.slot)
        self.starts.append(start)
        self.query_lens.append(num_tokens)
        self.samples.append(samples)

    def update_blocks(self, sequence: Sequence, changed: list[int]) -> None:
        assert sequence.slot is not None
        for index in changed:
            self.block_updates.append(BlockUpdate(sequence.slot, index, [sequence.block_table[index]]))

    def build(self, block_copies: BlockPairs, swap_outs: BlockPairs, swap_ins: BlockPairs) -> ScheduledStep:
        step_input = StepInput(
            new_sequences=self.new_sequences,
            block_updates=self.block_updates,
            block_copies=block_copies,
            slots=self.slots,
            starts=self.starts,
            query_lens=self.query_lens,
            samples=self.samples,
            swap_outs=swap_outs,
            swap_ins=swap_ins,
        )
        return ScheduledStep(step_input, self.sequences, self.preempted)


def new_sequence(sequence: Sequence) -> NewSequence:
    """What the worker must know of a sequence that takes a slot."""
    assert sequence.slot is not None
    params = sequence.request.params
    return NewSequence(
        slot=sequence.slot,
        token_ids=list(sequence.token_ids),
        num_prompt_tokens=sequence.num_prompt_tokens,
        params=params,
        seed=sequence.request.seed,
        sample_index=sequence.request.sample_index,
        block_ids=list(sequence.block_table),
        prompt_logprobs=params.prompt_logprobs if sequence.wants_prompt_logprobs else None,
        num_candidates=None if sequence.search is None else sequence.search.num_candidates,
        pooling=sequence.request.pooling,
    )

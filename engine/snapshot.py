"""A look at the scheduler and its blocks between two steps, for people who want to see what is going on."""

from __future__ import annotations

import msgspec

from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceStatus


class SequenceView(msgspec.Struct, frozen=True):
    """One sequence as it stands."""

    request_id: str
    phase: str  # waiting, swapped, prefill or decode
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    num_computed_tokens: int
    num_generated_tokens: int
    max_tokens: int
    num_blocks: int
    num_preemptions: int
    tenant: str


class Snapshot(msgspec.Struct, frozen=True):
    """All sequences, running ones first, and whose each block is."""

    sequences: list[SequenceView]
    block_size: int
    # For each block: -1 free, -2 free but kept for its content, -3 held by several sequences, or the place in `sequences` of its holder.
    block_holders: list[int]


def snapshot(scheduler: Scheduler) -> Snapshot:
    """What there is now. Costs as much as there are blocks and sequences: meant for a few looks a second."""
    manager = scheduler.block_manager
    running = list(scheduler.running)
    known = {sequence.request_id for sequence in running}
    waiting = [sequence for sequence in scheduler.sequences.values() if sequence.request_id not in known]
    holders = manager.block_states()
    for place, sequence in enumerate(running):
        for block_id in sequence.block_table:
            holders[block_id] = place if holders[block_id] == 0 else -3
    return Snapshot([_view(sequence) for sequence in running + waiting], manager.block_size, holders)


def _view(sequence: Sequence) -> SequenceView:
    return SequenceView(
        request_id=sequence.request_id,
        phase=_phase(sequence),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_computed_tokens=sequence.num_computed_tokens,
        num_generated_tokens=sequence.num_generated_tokens,
        max_tokens=sequence.request.max_tokens,
        num_blocks=len(sequence.block_table),
        num_preemptions=sequence.num_preemptions,
        tenant=sequence.request.tenant,
    )


def _phase(sequence: Sequence) -> str:
    if sequence.is_swapped:
        return "swapped"
    if sequence.status is not SequenceStatus.RUNNING:
        return "waiting"
    return "prefill" if sequence.is_prefilling else "decode"

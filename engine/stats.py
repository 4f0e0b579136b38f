"""Counts of what the engine holds and has done, for metrics and logs."""

from __future__ import annotations

import msgspec

STEP_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class EngineStats(msgspec.Struct):
    """A snapshot taken after a step. Names that end in `_total` only grow while the engine process lives; but `blocks_total`, and
    `host_blocks_total`, are the sizes of the pools."""

    num_running: int = 0  # sequences
    num_waiting: int = 0  # sequences, preempted ones included
    num_swapped: int = 0  # of these, with their KV in host memory
    blocks_total: int = 0
    blocks_referenced: int = 0
    blocks_cached: int = 0  # unreferenced, kept for their content
    blocks_free: int = 0  # free + referenced + cached == total
    shared_references: int = 0  # places in block tables beyond the first of each block
    table_slots: int = 0  # places for tokens in the blocks of all block tables; a shared block counts once a table
    unused_slots: int = 0  # of these, without KV
    host_blocks_total: int = 0
    host_blocks_held: int = 0  # by swapped-out sequences
    host_blocks_cached: int = 0  # kept for their content
    steps_total: int = 0
    prompt_tokens_total: int = 0  # of requests that were admitted, cached ones included; each is looked up in the prefix cache
    generation_tokens_total: int = 0
    prefix_cache_hits_total: int = 0  # prompt tokens found in the prefix cache
    prefix_cache_host_hits_total: int = 0  # of these, found in host memory only
    preemptions_total: int = 0
    preemptions_swap_total: int = 0  # of these, by swapping out; the others are computed again
    evictions_total: int = 0  # cached blocks given up for new content
    host_evictions_total: int = 0  # the same in host memory
    swap_out_copies_total: int = 0  # steps that copied to host memory: what one moves is one batch
    swap_out_blocks_total: int = 0
    swap_in_copies_total: int = 0
    swap_in_blocks_total: int = 0
    swap_seconds_total: float = 0.0  # of these copies, both ways
    # Where the time of steps goes. Where steps overlap, the scheduling of one lies inside the execution of another.
    schedule_seconds_total: float = 0.0
    model_seconds_total: float = 0.0
    sample_seconds_total: float = 0.0
    update_seconds_total: float = 0.0  # what becomes of the results, in the scheduler
    step_tokens_total: int = 0  # computed, by all steps
    steps_by_tokens: list[
        int
    ] = []  # how many steps computed at most so many tokens as STEP_TOKEN_BUCKETS says, and more than the one before

"""Counts of what the engine holds and has done, for metrics and logs."""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct):
    """A snapshot taken after a step. Names that end in `_total` only grow while the engine process lives."""

    num_running: int = 0  # sequences
    num_waiting: int = 0  # sequences, preempted ones included
    blocks_total: int = 0
    blocks_referenced: int = 0
    blocks_cached: int = 0  # unreferenced, kept for their content
    blocks_free: int = 0  # free + referenced + cached == total
    steps_total: int = 0
    prompt_tokens_total: int = 0  # of requests that were admitted, cached ones included; each is looked up in the prefix cache
    generation_tokens_total: int = 0
    prefix_cache_hits_total: int = 0  # prompt tokens found in the prefix cache
    preemptions_total: int = 0
    evictions_total: int = 0  # cached blocks given up for new content

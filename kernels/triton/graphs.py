"""CUDA graphs of decode steps: a forward pass recorded once for each size of a ladder, and replayed with one launch.

A step of decodes is hundreds of small kernels, each of which takes longer to launch than to run. A graph launches them all, but always the
same ones at the same addresses; so it is recorded for so many sequences and the longest context, reads its batch from buffers that never
move, and a smaller batch is padded with rows that do nothing. The padding is the graph's own first kernel: outside of the graph, a step
copies its inputs and no more.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from kernels.batch import Batch
from kernels.triton.padding import pad_decodes

Body = Callable[[], torch.Tensor]
# Runs a body now, so that the returned function can repeat it: with what then lies at the same addresses, and the same result tensor.
Recorder = Callable[[Body], Body]


def ladder(most: int) -> list[int]:
    """The sizes that are recorded, up to the most sequences of a step: close together where a row more costs most."""
    sizes = [1, 2, 4, 8, *range(16, 64, 16), *range(64, most, 32)]
    return [size for size in sizes if size < most] + [most]


class DecodeGraphs:
    """What `capture` returns: computes any batch, and those that are decodes alone by replaying a graph."""

    def __init__(self, forward: Callable[[Batch], torch.Tensor], capacity: Batch, record: Recorder) -> None:
        """A size is recorded when it is first wanted, or by `prepare`. The counts of `capacity.draws` tell how many rows are real."""
        assert capacity.draws is not None
        self.sizes = ladder(capacity.num_seqs)
        self._forward = forward
        self._capacity = capacity
        self._record = record
        self._counts = capacity.draws.counts
        self._replays: dict[int, Body] = {}

    def prepare(self) -> None:
        """Record all sizes, largest first, so that smaller graphs find room in the memory of larger ones."""
        self._counts.zero_()  # what is recorded also runs: no row is real
        for size in reversed(self.sizes):
            self._replay_of(size)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """What the forward pass gives, one row a token or one row a logit; valid until the next call if replayed.

        There may be more rows than were wanted; those behind belong to nobody.
        """
        size = self.size_for(batch)
        if size is None:
            return self._forward(batch)
        return self._replay_of(size)()[: batch.num_seqs]

    def size_for(self, batch: Batch) -> int | None:
        """The size of the graph that computes a batch; None if none does."""
        if batch.max_query_len > 1 or batch.num_tokens != batch.num_seqs or len(batch.logits_indices) > batch.num_seqs:
            return None
        place = bisect.bisect_left(self.sizes, batch.num_seqs)
        return self.sizes[place] if place < len(self.sizes) else None

    def _replay_of(self, size: int) -> Body:
        if size not in self._replays:
            self._replays[size] = self._record(partial(self._compute, decode_batch(self._capacity, size)))
        return self._replays[size]

    def _compute(self, batch: Batch) -> torch.Tensor:
        pad_decodes(batch, self._counts)
        return self._forward(batch)


def decode_batch(capacity: Batch, size: int) -> Batch:
    """A batch of so many decodes, in the buffers of the largest one: their contexts may be as long as that has room for."""
    return replace(
        capacity,
        num_tokens=size,
        num_seqs=size,
        max_query_len=1,
        token_ids=capacity.token_ids[:size],
        positions=capacity.positions[:size],
        slot_mapping=capacity.slot_mapping[:size],
        query_start_loc=capacity.query_start_loc[: size + 1],
        seq_lens=capacity.seq_lens[:size],
        block_tables=capacity.block_tables[:size],
        logits_indices=capacity.logits_indices[:size],
    )


class CudaRecorder:
    """Records bodies as CUDA graphs that share one pool of memory: only one of their results is wanted at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, body: Body) -> Body:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            body()  # what is only done once, as compiling kernels, may not be recorded
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = body()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


def repeat_eagerly(body: Body) -> Body:
    """A recorder for devices without graphs, as the interpreter's: the same padded batches, computed anew each time."""
    return body

"""Staging: blocks on their way between a device's pool and host memory, through a buffer on the device.

The blocks of a sequence lie anywhere in the pool. One kernel gathers many of them in the buffer, in the order of the host blocks that they
go to, so that neighbours there cross the bus in one copy; on the way back another spreads them. docs/decisions/swap-space.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine.host_cache import BlockPairs
from kernels.ops import Ops

_BUFFER_BYTES = 64 << 20


class Staging:
    """Copies between `blocks` [blocks of the device, bytes] and `host` [host blocks, bytes], in the order of the device's work.

    On a device they are queued on its current stream, and `host` is to be pinned; nothing waits for them to end.
    """

    def __init__(self, blocks: torch.Tensor, host: torch.Tensor, ops: Ops) -> None:
        num_rows = max(1, min(len(host), _BUFFER_BYTES // blocks.shape[1]))
        self._buffer = blocks.new_empty((num_rows, blocks.shape[1]))
        self._blocks = blocks
        self._host = host
        self._ops = ops

    def copy_out(self, outs: BlockPairs, gathered: Callable[[], None]) -> None:
        """Copy (device, host) blocks. `gathered` is called whenever the work to gather some has been queued; the last time, it was all:
        what is queued behind that may fill the blocks anew.
        """
        for part in self._parts([(host_block, device_block) for device_block, host_block in outs]):
            self._ops.copy_blocks(self._blocks, self._buffer, self._to_device([(block, row) for row, (_, block) in enumerate(part)]))
            gathered()
            for host_blocks, rows in _runs(part):
                self._host[host_blocks].copy_(self._buffer[rows], non_blocking=True)

    def copy_in(self, ins: BlockPairs) -> None:
        """Copy (host, device) blocks."""
        for part in self._parts(ins):
            for host_blocks, rows in _runs(part):
                self._buffer[rows].copy_(self._host[host_blocks], non_blocking=True)
            self._ops.copy_blocks(self._buffer, self._blocks, self._to_device([(row, block) for row, (_, block) in enumerate(part)]))

    def _parts(self, pairs: BlockPairs) -> Iterator[BlockPairs]:
        """(host, device) pairs in the order of host blocks, as many at a time as the buffer holds."""
        ordered = sorted(pairs)
        for first in range(0, len(ordered), len(self._buffer)):
            yield ordered[first : first + len(self._buffer)]

    def _to_device(self, pairs: BlockPairs) -> torch.Tensor:
        """Through pinned memory, as a copy from any other waits until the stream is done."""
        device = self._buffer.device
        return torch.tensor(pairs, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _runs(part: BlockPairs) -> Iterator[tuple[slice, slice]]:
    """Where host blocks follow one another, in (host, device) pairs that are sorted: (host blocks, rows of the buffer)."""
    start = 0
    for row in range(1, len(part) + 1):
        if row == len(part) or part[row][0] != part[row - 1][0] + 1:
            first = part[start][0]
            yield slice(first, first + row - start), slice(start, row)
            start = row

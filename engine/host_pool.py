"""HostPool: the tensor behind the host blocks, and the copies between it and the device's pool.

A block is one stretch of memory in both pools, so a copy moves it whole: keys and values of all layers.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch

from engine.config import GIB, EngineConfig
from engine.errors import ConfigError
from engine.host_cache import BlockPairs
from engine.pages import drop_pages
from engine.staging import Staging
from kernels.container import usable_memory
from kernels.ops import Ops


class HostPool:
    """Host blocks for a device whose pool lies in host memory itself: plain copies, one stretch of memory a block."""

    def __init__(self, pool: torch.Tensor, num_blocks: int) -> None:
        self._device = _rows(pool).numpy()  # [blocks of the device, bytes]
        # calloc gives zero pages as they are touched: room that no block has come to costs nothing.
        self._host = np.zeros((num_blocks, self._device.shape[1]), np.uint8)
        self._seconds = 0.0
        self._num_timed = 0

    def swap(self, outs: BlockPairs, ins: BlockPairs) -> None:
        """Copy (device, host) blocks out, then (host, device) blocks in. Work that is given to the device afterwards sees the result."""
        started = time.perf_counter()
        # A loop of plain copies: indexing by lists goes through a temporary array, and takes twice as long at a block's usual size.
        for device_block, host_block in outs:
            self._host[host_block] = self._device[device_block]
        for host_block, device_block in ins:
            self._device[device_block] = self._host[host_block]
        self._seconds += time.perf_counter() - started
        self._num_timed += len(outs) + len(ins)

    def free(self) -> None:
        """Give the memory behind the blocks back until they are written again. Their content is lost."""
        drop_pages(self._host.ctypes.data, self._host.nbytes)

    def take_timing(self) -> tuple[float, int]:
        """(seconds, blocks) of the copies that have ended since the last call."""
        timing = self._seconds, self._num_timed
        self._seconds, self._num_timed = 0.0, 0
        return timing


class CudaHostPool(HostPool):
    """Host blocks in pinned memory, copied on a stream of their own while this process goes on.

    What leaves is first gathered on the device, and from there it crosses the bus while the step computes. Only a swap that is larger than
    the buffer holds the computation up, and what arrives does, which the step reads. Nothing here waits for the device.
    """

    def __init__(self, pool: torch.Tensor, num_blocks: int, ops: Ops) -> None:
        blocks = _rows(pool)
        pinned = torch.zeros((num_blocks, blocks.shape[1]), dtype=torch.uint8, pin_memory=True)
        self._staging = Staging(blocks, pinned, ops)
        self._pool_device = pool.device
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]
        self._timings: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque()

    def swap(self, outs: BlockPairs, ins: BlockPairs) -> None:
        compute = torch.cuda.current_stream(self._pool_device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        gathered = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(compute)  # the step before, which wrote what leaves
        with torch.cuda.stream(self._stream):
            start.record()
            self._staging.copy_out(outs, gathered.record)
            self._staging.copy_in(ins)
            end.record()
        compute.wait_event(end if ins else gathered)
        self._timings.append((start, end, len(outs) + len(ins)))

    def take_timing(self) -> tuple[float, int]:
        seconds, num_timed = 0.0, 0
        while self._timings and self._timings[0][1].query():  # type: ignore[no-untyped-call]
            start, end, num_blocks = self._timings.popleft()
            seconds += start.elapsed_time(end) / 1000
            num_timed += num_blocks
        return seconds, num_timed

    def free(self) -> None:
        """Pinned memory stays: a machine may refuse to pin as much a second time."""


def new_host_pool(pool: torch.Tensor, num_blocks: int, ops: Ops) -> HostPool:
    """Host blocks like those of `pool`, [num_blocks, ...]."""
    return CudaHostPool(pool, num_blocks, ops) if pool.device.type == "cuda" else HostPool(pool, num_blocks)


def plan_num_host_blocks(config: EngineConfig, block_bytes: int, device: torch.device) -> int:
    """How many host blocks there are. Raises ConfigError when swapping is asked for without room for it."""
    num_bytes = config.swap_space
    if num_bytes is None:
        # On the CPU the pool lies in host memory itself: the same bytes do more as a larger pool, where nothing needs to be copied.
        num_bytes = min(usable_memory() // 8, 4 * GIB) if device.type == "cuda" else 0
    num_blocks = num_bytes // block_bytes
    if num_bytes and not num_blocks:
        raise ConfigError(f"swap_space of {num_bytes} bytes holds not one KV block: raise --swap-space to at least {block_bytes}, or to 0")
    if num_blocks * block_bytes > (total := usable_memory()):
        raise ConfigError(
            f"swap_space of {num_bytes} bytes is larger than the memory that this process may have, {total}: lower --swap-space"
        )
    if config.preemption_mode == "swap" and not num_blocks:
        raise ConfigError("preemption_mode is swap, but there is no swap space: set --swap-space to for example 4G")
    return num_blocks


def _rows(pool: torch.Tensor) -> torch.Tensor:
    """The pool as [num_blocks, bytes of a block]."""
    return pool.view(pool.shape[0], -1).view(torch.uint8)

"""Swapping blocks between the device and pinned memory: how fast, and how long the process is held up that starts it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import torch

from engine.host_cache import BlockPairs
from engine.host_pool import HostPool, new_host_pool
from kernels.triton import TritonOps

POOL_BYTES = 512 << 20


@dataclass(frozen=True)
class Seconds:
    total: float  # until the last block has arrived
    host: float  # until the copies are queued, and the process may go on


@dataclass(frozen=True)
class Figures:
    num_bytes: int  # that went either way
    out: Seconds
    back: Seconds
    is_equal: bool  # whether the blocks came back as they left


def swap_figures(device: torch.device, block_bytes: int, *, in_runs: bool) -> Figures:
    """Of every second block of a pool, in random order; the second try counts. `in_runs`: they become neighbours in host memory."""
    num_blocks = POOL_BYTES // block_bytes if device.type == "cuda" else 8
    pool = torch.randint(0, 255, (num_blocks, block_bytes), dtype=torch.uint8, device=device)
    before = pool.clone()
    host = new_host_pool(pool, num_blocks, TritonOps(device, torch.float16))
    moved = random.Random(0).sample(range(0, num_blocks, 2), num_blocks // 2)
    places = range(len(moved)) if in_runs else random.Random(1).sample(range(0, num_blocks, 2), len(moved))
    outs = list(zip(moved, places, strict=True))
    ins = [(host_block, block) for block, host_block in outs]
    for _ in range(2):
        out = _seconds_of(host, outs, [], device)
        pool[moved] = 0
        back = _seconds_of(host, [], ins, device)
    return Figures(len(moved) * block_bytes, out, back, torch.equal(pool, before))


def _seconds_of(host: HostPool, outs: BlockPairs, ins: BlockPairs, device: torch.device) -> Seconds:
    _wait_for(device)
    started = time.perf_counter()
    host.swap(outs, ins)
    queued = time.perf_counter()
    _wait_for(device)
    return Seconds(time.perf_counter() - started, queued - started)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()

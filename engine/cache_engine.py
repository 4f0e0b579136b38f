"""CacheEngine: the tensors behind the KV blocks.

One pool holds a block's keys and values of all layers side by side, [num_blocks, num_layers, 2, num_kv_heads, block_size, row], so that a
whole block is one stretch of memory to copy or to move; `kernels.kv_cache` says what a row is. It knows nothing of sequences.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.config import GIB, EngineConfig
from engine.device_copy import to_device
from engine.errors import ConfigError
from engine.host_cache import BlockPairs
from engine.host_pool import new_host_pool
from engine.pages import drop_pages
from kernels.batch import AttentionShape
from kernels.container import usable_memory
from kernels.kv_cache import row_elements
from kernels.ops import Ops


class CacheEngine:
    """The pool and its view for each layer, and the host blocks behind it."""

    def __init__(
        self, shapes: list[AttentionShape], num_blocks: int, block_size: int, dtype: torch.dtype, ops: Ops, num_host_blocks: int = 0
    ) -> None:
        self._ops = ops
        pool_shape = (num_blocks, len(shapes), *block_shape(shapes[0], block_size, dtype))
        self.pool = _zeros(pool_shape, dtype, ops.device)
        # of each layer: [num_blocks, 2, num_kv_heads, block_size, row], its blocks apart by all the layers
        self.kv_caches = [self.pool[:, layer] for layer in range(len(shapes))]
        self._address = self.pool.data_ptr()  # before its memory was given back
        self._host = new_host_pool(self.pool, num_host_blocks, ops) if num_host_blocks else None

    def free(self) -> None:
        """Give the pool's memory back until `restore`. What is cached is lost; whatever refers to the pool goes on to."""
        if self.pool.device.type == "cpu":
            drop_pages(self.pool.data_ptr(), self.pool.nbytes)
        else:
            self._address = self.pool.data_ptr()
            self.pool.untyped_storage().resize_(0)
            torch.cuda.empty_cache()
        if self._host is not None:
            self._host.free()

    def restore(self) -> bool:
        """Take the memory again: -> whether it lies elsewhere now. Raises OutOfMemoryError when somebody else has it."""
        if self.pool.device.type == "cpu":
            return False
        self.pool.untyped_storage().resize_(self.pool.nbytes)
        self.pool.zero_()
        return self.pool.data_ptr() != self._address

    def swap(self, outs: BlockPairs, ins: BlockPairs) -> None:
        """Copy blocks to host memory, (device, host) each, and then others back, (host, device)."""
        if self._host is not None and (outs or ins):
            self._host.swap(outs, ins)

    def take_swap_timing(self) -> tuple[float, int]:
        """(seconds, blocks) of the swaps that have ended since the last call."""
        return (0.0, 0) if self._host is None else self._host.take_timing()

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each, in all layers; the result is that of one copy after the other."""
        for independent in _in_waves(pairs):
            indices = to_device(np.array(independent, np.int64), self.pool.device)
            self._ops.copy_blocks(self.pool, self.pool, indices)


def _in_waves(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs in order, cut wherever a block would be read or written after it was written, or written after it was read.

    So the copies of a wave may run all at once. More than one is rare: blocks that are freed and taken again within a step.
    """
    waves: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if not waves or source in written or destination in written or destination in read:
            waves.append([])
            read, written = set(), set()
        waves[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return waves


def block_shape(shape: AttentionShape, block_size: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    return (2, shape.num_kv_heads, block_size, row_elements(shape.head_size, dtype))


def bytes_per_block(shapes: list[AttentionShape], block_size: int, dtype: torch.dtype) -> int:
    """Of one block in all layers."""
    if len({(s.num_kv_heads, s.head_size) for s in shapes}) != 1:
        raise ConfigError("layers with different KV heads or head sizes are not supported")
    elements = int(np.prod(block_shape(shapes[0], block_size, dtype))) * len(shapes)
    return elements * dtype.itemsize


def plan_num_blocks(config: EngineConfig, block_bytes: int, max_model_len: int, device: torch.device) -> int:
    """How many blocks the pool gets. Raises ConfigError, with the numbers, when not even one full-length sequence would fit."""
    if config.num_gpu_blocks_override is not None:
        num_blocks = config.num_gpu_blocks_override
    else:
        num_blocks = _memory_for_kv(config, device) // block_bytes
    if device.type == "cpu" and num_blocks * block_bytes > (total := usable_memory()):
        raise ConfigError(
            f"a KV cache of {_size(num_blocks * block_bytes)} is larger than the memory that this process may have, {_size(total)}"
        )
    num_tokens = num_blocks * config.block_size
    if num_tokens < max_model_len:
        needed_blocks = -(-max_model_len // config.block_size)
        needed = _size(needed_blocks * block_bytes)
        remedy = f"--kv-cache-memory to at least {needed}"
        if config.num_gpu_blocks_override is not None:
            remedy = f"--num-gpu-blocks-override to at least {needed_blocks}"
        raise ConfigError(
            f"the KV cache of {_size(num_blocks * block_bytes)} holds {num_tokens} tokens, but one sequence of max_model_len "
            f"{max_model_len} needs {needed}: raise {remedy}" + (f" or lower --max-model-len to {num_tokens}" if num_tokens else "")
        )
    return num_blocks


def _memory_for_kv(config: EngineConfig, device: torch.device) -> int:
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total * config.gpu_memory_utilization) - (total - free))
    return min(usable_memory() // 8, 4 * GIB)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # calloc gives zero pages as they are touched: a pool of gigabytes costs nothing until it is used.
    pages = np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)


def _size(num_bytes: int) -> str:
    """As the command line takes it, rounded up so that what is asked for suffices."""
    unit, name = (1 << 20, "M") if num_bytes >= 16 << 20 else (1 << 10, "K")
    return f"{-(-num_bytes // unit)}{name}"

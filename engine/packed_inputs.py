"""A step's inputs side by side in one stretch of memory, so that one copy takes them to the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes
_NUM_HOST_BUFFERS = 2  # one is filled while the copy of the other may wait for the device


class PackedInputs:
    """Named arrays: filled on the host, then sent, and read on the device at addresses that never change.

    Where the device is the CPU they are the same memory, and sending is nothing. Elsewhere the host's side is memory of its own, pinned for
    CUDA, in two copies that take turns: a device that is a step behind still reads the one while the other is filled.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device, *, copies: bool) -> None:
        """All are zeros. `copies`: whether the device's side is other memory, as tests want it on the CPU too."""
        self._places: dict[str, tuple[int, int]] = {}  # by name: where the array starts, and the bytes of one of its rows
        end = 0
        for name, (shape, dtype) in shapes.items():
            row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            self._places[name] = end, row_bytes
            end += -(-shape[0] * row_bytes // _ALIGNMENT) * _ALIGNMENT
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.tensors = self._views(self._device, shapes)  # on the device
        is_cuda = device.type == "cuda"
        self._hosts = (
            [torch.zeros(end, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(_NUM_HOST_BUFFERS)] if copies else [self._device]
        )
        self._arrays = [{name: tensor.numpy() for name, tensor in self._views(host, shapes).items()} for host in self._hosts]
        self._sent = [torch.cuda.Event() for _ in self._hosts] if is_cuda else []  # type: ignore[no-untyped-call]
        self._copies = copies
        self._turn = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to fill before the next `send`, which hold those of an earlier step. Waits until the copy that read them is done."""
        if self._sent:
            self._sent[self._turn].synchronize()
        return self._arrays[self._turn]

    def send(self, name: str, num_rows: int) -> None:
        """Copy every array before `name`, and the first rows of `name`, in one stretch, without waiting for it."""
        if not self._copies:
            return
        start, row_bytes = self._places[name]
        end = start + num_rows * row_bytes
        self._device[:end].copy_(self._hosts[self._turn][:end], non_blocking=True)
        if self._sent:
            self._sent[self._turn].record()
        self._turn = (self._turn + 1) % len(self._hosts)

    def _views(self, memory: torch.Tensor, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
        views = {}
        for name, (shape, dtype) in shapes.items():
            start, row_bytes = self._places[name]
            views[name] = memory[start : start + shape[0] * row_bytes].view(dtype).view(shape)
        return views

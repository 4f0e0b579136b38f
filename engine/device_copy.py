"""Arrays of the host that a device, which may be computing, is to have in its turn."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The same values there. They go through pinned memory: a copy from any other waits until the device is done."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)

"""A CUDA driver for Triton that has no GPU behind it: kernels are specialised and compiled as for one, and launched as far as that goes.

Everything up to the launch is Triton's own: which options a launch may give, what it makes of the arguments (multiples of 16, ones), the
compiler, and the check of shared memory. Only what the driver would do is replaced: machine code that would be loaded is handed to
`on_load`, and a launch checks no more than its grid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

# Bytes of shared memory that one thread block may have: CUDA C++ Programming Guide, compute capabilities.
SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
MOST_PROGRAMS = (2**31 - 1, 65535, 65535)
# Takes the kernel's source with its specialisation, its metadata, and its machine code.
OnLoad = Callable[[Any, Any, bytes], None]


class FakeDriver:
    """Of one GPU, of `architecture` 90 for example; it stands in for `triton.backends.nvidia.driver.CudaDriver`."""

    def __init__(self, architecture: int, on_load: OnLoad) -> None:
        self.architecture = architecture
        self.utils = self
        self._on_load = on_load
        self._latest: tuple[Any, Any] | None = None

    def install(self) -> None:
        triton.runtime.driver.set_active(self)

    def get_current_device(self) -> int:
        return self.architecture  # kernels are kept by device: those of two architectures must not be taken for each other's

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES[self.architecture]}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What launches a kernel; asked for before its code is loaded."""
        # Scratch memory would be allocated at each launch.
        assert metadata.global_scratch_size + metadata.profile_scratch_size == 0, metadata.name
        self._latest = source, metadata
        return launch

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        assert self._latest is not None
        self._on_load(*self._latest, kernel)
        return 1, 1, 0, 0, 1024  # module, function, registers, spills, most threads


def launch(*arguments: Any) -> None:
    grid = arguments[:3]
    assert all(1 <= size <= most for size, most in zip(grid, MOST_PROGRAMS, strict=True)), f"no grid: {grid}"

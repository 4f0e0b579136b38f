"""The operations on an ordinary CPU: C with vector intrinsics, compiled by the machine's own compiler at first use."""

from __future__ import annotations

import warnings

import torch

from kernels.ops import Ops


def load_cpu_ops(device: torch.device, dtype: torch.dtype, num_threads: int | None = None) -> Ops:
    """The C kernels with weights of floats in `dtype` (float32: as they come), on `num_threads` threads (None: as many as `usable_cores`).

    Where they cannot be built, a warning says why and the reference operations are returned. Raises ValueError for a device that is
    not the CPU.
    """
    from kernels.cpu.build import BuildError, library_path
    from kernels.cpu.ops import CpuOps
    from kernels.cpu.structs import load_library
    from kernels.reference import ReferenceOps

    if device.type != "cpu":
        raise ValueError(f"the CPU kernels do not run on {device}: use auto or reference")
    try:
        return CpuOps(load_library(library_path()), device, dtype, num_threads)
    except (BuildError, OSError) as error:
        warnings.warn(
            "the CPU kernels could not be built, so the reference operations are used, which are many times slower, and whose tokens "
            f"may depend on the load: {error}",
            stacklevel=2,
        )
        return ReferenceOps(device, dtype)

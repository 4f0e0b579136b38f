"""`sample` on the threads of the CPU kernels: csrc/sample.c."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cpu.structs import SampleArgs
from kernels.cpu.threads import ThreadPool
from kernels.sampling import DrawSettings

_TYPES = {
    "temperature": np.float32,
    "log_min_p": np.float32,
    "top_k": np.int32,
    "top_p": np.float64,
    "seeds": np.uint64,
    "sample_indices": np.uint64,
    "positions": np.uint64,
}


def sample(pool: ThreadPool, logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
    """The contract is that of `kernels.ops.Ops.sample`. Raises ValueError for arrays that the kernel cannot read."""
    num_rows, vocab_size = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"expected contiguous float32 logits, got {logits.dtype} {tuple(logits.shape)} with strides {logits.stride()}")
    addresses = {}
    for name, dtype in _TYPES.items():
        values = getattr(settings, name)
        if values.dtype != dtype or values.shape != (num_rows,) or not values.flags.c_contiguous:
            raise ValueError(f"{name} must be contiguous {np.dtype(dtype)} [{num_rows}], got {values.dtype} {list(values.shape)}")
        addresses[name] = values.ctypes.data
    token_ids = np.empty(num_rows, np.int64)
    pool.run(SampleArgs(logits=logits.data_ptr(), out=token_ids.ctypes.data, num_rows=num_rows, vocab_size=vocab_size, **addresses))
    return token_ids

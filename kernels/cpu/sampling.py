"""`sample` and `logprobs` on the threads of the CPU kernels: csrc/sample.c and csrc/logprobs.c."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cpu.structs import LogprobsArgs, SampleArgs
from kernels.cpu.threads import ThreadPool
from kernels.sampling import DrawSettings, RowLogprobs

_TYPES: dict[str, type[np.generic]] = {
    "temperature": np.float32,
    "log_min_p": np.float32,
    "top_k": np.int32,
    "top_p": np.float64,
    "seeds": np.uint64,
    "sample_indices": np.uint64,
    "positions": np.uint64,
}


class SampleCall:
    """`sample` with the same settings, whose arrays may be written to between calls.

    The contract is that of `kernels.ops.Ops.sample`. Raises ValueError for arrays that the kernel cannot read.
    """

    def __init__(self, settings: DrawSettings) -> None:
        self.settings = settings  # kept, as the kernel reads its arrays
        self._num_rows = len(settings.temperature)
        addresses = {name: _address(name, getattr(settings, name), dtype, self._num_rows) for name, dtype in _TYPES.items()}
        self._args = SampleArgs(num_rows=self._num_rows, **addresses)

    def run(self, pool: ThreadPool, logits: torch.Tensor) -> NDArray[np.int64]:
        _check_logits(logits)
        num_rows, vocab_size = logits.shape
        if num_rows != self._num_rows:
            raise ValueError(f"there are settings for {self._num_rows} rows of logits, got {num_rows}")
        token_ids = np.empty(num_rows, np.int64)
        args = self._args
        args.logits, args.vocab_size, args.out = logits.data_ptr(), vocab_size, _address("token_ids", token_ids, np.int64, num_rows)
        pool.run(args)
        return token_ids


def logprobs(pool: ThreadPool, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
    """The contract is that of `kernels.ops.Ops.logprobs`. Raises ValueError for arrays that the kernel cannot read."""
    _check_logits(logits)
    num_rows, vocab_size = logits.shape
    most = int(num_top.max(initial=0))
    if most > vocab_size or num_top.min(initial=0) < 0 or not ((token_ids >= 0) & (token_ids < vocab_size)).all():
        raise ValueError(f"num_top and token_ids must be within the vocabulary of {vocab_size} tokens")
    result = RowLogprobs(
        np.empty(num_rows, np.float32),
        np.empty(num_rows, np.int64),
        np.empty((num_rows, most), np.int32),
        np.empty((num_rows, most), np.int32),
        np.empty((num_rows, most), np.float32),
    )
    args = LogprobsArgs(
        logits=logits.data_ptr(),
        token_ids=_address("token_ids", token_ids, np.int64, num_rows),
        num_top=_address("num_top", num_top, np.int32, num_rows),
        chosen=result.chosen.ctypes.data,
        ranks=result.ranks.ctypes.data,
        top_ids=result.top_ids.ctypes.data,
        top_ranks=result.top_ranks.ctypes.data,
        top_values=result.top_values.ctypes.data,
        num_rows=num_rows,
        vocab_size=vocab_size,
        most=most,
    )
    pool.run(args)
    return result


def _check_logits(logits: torch.Tensor) -> None:
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"expected contiguous float32 logits, got {logits.dtype} {tuple(logits.shape)} with strides {logits.stride()}")


def _address(name: str, values: NDArray[Any], dtype: type[np.generic], num_rows: int) -> int:
    if values.dtype != dtype or values.shape != (num_rows,) or not values.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous {np.dtype(dtype)} [{num_rows}], got {values.dtype} {list(values.shape)}")
    if not num_rows:
        return 0
    return addressof(c_char.from_buffer(values))  # a quarter of the time of values.ctypes.data

"""What Triton's interpreter gets wrong and these kernels need, for tests on the CPU: the rounding of floats to E4M3.

The interpreter of Triton 3.9 loses the carry when the mantissa rounds up to the next power of two (127 becomes 64) and cuts subnormal
numbers off instead of rounding them. PyTorch does both as GPUs do. Compiled kernels are not concerned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def mend_interpreter() -> None:
    """Have the interpreter round to E4M3 as PyTorch does, to the nearest and of two such to the even one."""
    convert = interpreter._convert_float

    def mended(values: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
        if output_dtype != tl.float8e4nv or values.dtype not in (np.float32, np.float16):
            return convert(values, input_dtype, output_dtype, rounding_mode)
        return torch.from_numpy(np.ascontiguousarray(values)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    interpreter._convert_float = mended

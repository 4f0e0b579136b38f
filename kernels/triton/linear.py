"""Products with weights. A packed form is a class with these two methods; `pack_linear` picks it by the weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from kernels.triton.matmul import matmul
from kernels.weights import Weight


class PackedLinear(Protocol):
    """A weight [out, in] and its bias [out] in the form that some kernel reads."""

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias: [T, in] -> [T, out]."""
        ...

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        """weight[rows]: [T] int32 -> [T, in]."""
        ...


@dataclass(frozen=True)
class DenseLinear:
    """A plain matrix, multiplied by cuBLAS. Which of its kernels runs depends on T, so a row's bits may too."""

    weight: torch.Tensor  # [out_features, in_features]
    bias: torch.Tensor | None  # [out_features]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding(rows, self.weight)


@dataclass(frozen=True)
class FixedOrderLinear:
    """A plain matrix, multiplied by a kernel whose sums have one order whatever T is."""

    weight: torch.Tensor  # [out_features, in_features]
    bias: torch.Tensor | None  # [out_features]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return matmul(x, self.weight, self.bias)

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding(rows, self.weight)


def pack_linear(
    weight: Weight, bias: torch.Tensor | None, device: torch.device, dtype: torch.dtype, *, deterministic: bool
) -> PackedLinear:
    """Quantised weights are dequantised here, once: they save disk and download, but no memory on the device."""
    form = FixedOrderLinear if deterministic else DenseLinear
    return form(weight.dequantize().to(device, dtype).contiguous(), None if bias is None else bias.to(device, dtype))

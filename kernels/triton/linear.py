"""Products with weights. A packed form is a class with these two methods; `pack_linear` picks it by the weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from kernels.triton.fp8_matmul import fp8_matmul
from kernels.triton.matmul import matmul
from kernels.triton.quantized_matmul import GroupedCodes, pack_grouped, quantized_matmul, unpack_rows
from kernels.weights import Fp8Weight, QuantizedWeight, Weight


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


@dataclass(frozen=True)
class GroupedLinear:
    """Codes of 4 or 8 bits with a scale for each group: `quantized_matmul`."""

    weight: GroupedCodes
    bias: torch.Tensor | None  # [out_features]
    dtype: torch.dtype  # of activations
    deterministic: bool

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return quantized_matmul(x, self.weight, self.bias, deterministic=self.deterministic)

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        return unpack_rows(self.weight, rows, self.dtype)


@dataclass(frozen=True)
class Fp8Linear:
    """8-bit floats with a scale for each output feature, multiplied with activations of 8-bit floats: `fp8_matmul`."""

    weight: Fp8Weight
    bias: torch.Tensor | None  # [out_features]
    dtype: torch.dtype  # of activations
    deterministic: bool

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return fp8_matmul(x, self.weight.codes, self.weight.scales, self.bias, deterministic=self.deterministic)

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.weight.codes[rows].float() * self.weight.scales[rows].unsqueeze(-1)).to(self.dtype)


def pack_linear(
    weight: Weight, bias: torch.Tensor | None, device: torch.device, dtype: torch.dtype, *, deterministic: bool
) -> PackedLinear:
    """Quantised weights stay quantised, but for groups that the kernel does not know: these become dense.

    Raises ValueError for 8-bit floats on a GPU whose tensor cores cannot multiply them.
    """
    bias = None if bias is None else bias.to(device, dtype)
    if isinstance(weight, QuantizedWeight) and (grouped := pack_grouped(weight, device, dtype)) is not None:
        return GroupedLinear(grouped, bias, dtype, deterministic)
    if isinstance(weight, Fp8Weight):
        if not has_fp8(device):
            raise ValueError(
                f"8-bit floats need an NVIDIA GPU of compute capability 8.9 or later, not {torch.cuda.get_device_name(device)}"
            )
        on_device = Fp8Weight(weight.codes.to(device).contiguous(), weight.scales.to(device).contiguous())
        return Fp8Linear(on_device, bias, dtype, deterministic)
    form = FixedOrderLinear if deterministic else DenseLinear
    return form(weight.dequantize().to(device, dtype).contiguous(), bias)


def has_fp8(device: torch.device) -> bool:
    """Whether the device has instructions for 8-bit floats; one that is no GPU is the interpreter's."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)

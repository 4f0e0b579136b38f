"""Weights as a checkpoint gives them, before an operation set packs them for its kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch


@dataclass(frozen=True)
class DenseWeight:
    """A plain matrix."""

    data: torch.Tensor  # [out_features, in_features], float32, float16 or bfloat16

    @property
    def shape(self) -> tuple[int, int]:
        return (self.data.shape[0], self.data.shape[1])

    def dequantize(self) -> torch.Tensor:
        """The matrix itself, in its stored type."""
        return self.data

    def is_finite(self) -> bool:
        """Whether none of its numbers is infinite or no number."""
        return all_finite(self.data)

    def to(self, device: torch.device) -> DenseWeight:
        """The same on a device."""
        return DenseWeight(self.data.to(device))

    def rows(self, start: int, stop: int) -> DenseWeight:
        """Output features [start, stop)."""
        return DenseWeight(self.data[start:stop])

    def select(self, order: torch.Tensor) -> DenseWeight:
        """Output features in another order; `order` is int64 [out_features]."""
        return DenseWeight(self.data[order])


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix of small integer codes with an affine map per group of input features.

    weight[o, i] = scales[o, i // group_size] * codes[o, i] + mins[o, i // group_size]

    Every GGUF block format from Q4_0 to Q6_K, the IQ4 ones too, and the usual group-wise int4 and int8 checkpoints, are exactly this with
    some `bits` and `group_size`; so kernels meet one form and no file format. What `--quantization int8` and `int4` make of floats
    (kernels/quantize.py) is two cases of it: signed codes of 8 bits without minimums, and unsigned ones of 4 bits with minimums, in
    groups of 32 (16 where 32 does not divide), all scales float16 values.

    Codes take a byte each here, whatever `bits` is: this form lives from reading to packing, one matrix at a time, and an operation set
    packs it as its kernels like (`Ops.pack_linear`).
    """

    codes: torch.Tensor  # [out_features, in_features], int8; within [0, 2**bits) or, if signed, [-2**(bits-1), 2**(bits-1))
    scales: torch.Tensor  # [out_features, in_features // group_size], float32
    mins: torch.Tensor | None  # like scales; None means zero
    group_size: int  # 16 or 32 input features (other sizes that divide in_features are legal for the reference)
    bits: int  # of a code: 2 to 8
    signed: bool  # whether codes may be negative

    @property
    def shape(self) -> tuple[int, int]:
        return (self.codes.shape[0], self.codes.shape[1])

    def dequantize(self) -> torch.Tensor:
        """The matrix in float32, [out_features, in_features]."""
        out_features, in_features = self.shape
        grouped = self.codes.view(out_features, -1, self.group_size).to(torch.float32)
        values = grouped * self.scales.unsqueeze(-1)
        if self.mins is not None:
            values += self.mins.unsqueeze(-1)
        return values.view(out_features, in_features)

    def is_finite(self) -> bool:
        """Whether none of its numbers is infinite or no number."""
        return all_finite(self.scales) and (self.mins is None or all_finite(self.mins))

    def to(self, device: torch.device) -> QuantizedWeight:
        """The same on a device."""
        mins = None if self.mins is None else self.mins.to(device)
        return QuantizedWeight(self.codes.to(device), self.scales.to(device), mins, self.group_size, self.bits, self.signed)

    def rows(self, start: int, stop: int) -> QuantizedWeight:
        """Output features [start, stop)."""
        return self.select(slice(start, stop))

    def select(self, order: torch.Tensor | slice) -> QuantizedWeight:
        """Output features in another order."""
        mins = None if self.mins is None else self.mins[order]
        return QuantizedWeight(self.codes[order], self.scales[order], mins, self.group_size, self.bits, self.signed)


FP8_MAX = 448.0  # the largest finite number of E4M3


@dataclass(frozen=True)
class Fp8Weight:
    """A matrix of 8-bit floats (E4M3) with one scale per output feature: weight[o, i] = scales[o] * codes[o, i]."""

    codes: torch.Tensor  # [out_features, in_features], float8_e4m3fn
    scales: torch.Tensor  # [out_features], float32
    bits: ClassVar[int] = 8

    @staticmethod
    def of(matrix: torch.Tensor) -> Fp8Weight:
        """The nearest one to a matrix [out_features, in_features] of floats; the largest of a row is at the end of the type's range."""
        values = matrix.float()
        largest = values.abs().amax(-1)
        scales = torch.where(largest > 0, largest / FP8_MAX, 1.0)
        return Fp8Weight((values / scales.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.codes.shape[0], self.codes.shape[1])

    def dequantize(self) -> torch.Tensor:
        """The matrix in float32, [out_features, in_features]."""
        return self.codes.float() * self.scales.unsqueeze(-1)

    def is_finite(self) -> bool:
        """Whether none of its numbers is infinite or no number."""
        return all_finite(self.scales) and all_finite(self.codes.float())

    def to(self, device: torch.device) -> Fp8Weight:
        """The same on a device."""
        return Fp8Weight(self.codes.to(device), self.scales.to(device))

    def rows(self, start: int, stop: int) -> Fp8Weight:
        """Output features [start, stop)."""
        return Fp8Weight(self.codes[start:stop], self.scales[start:stop])

    def select(self, order: torch.Tensor) -> Fp8Weight:
        """Output features in another order; `order` is int64 [out_features]."""
        return Fp8Weight(self.codes[order], self.scales[order])


def all_finite(values: torch.Tensor) -> bool:
    """As fast as the values can be read: `isfinite` would write a mask of them."""
    if values.numel() == 0:
        return True
    low, high = values.aminmax()  # no number, if one of them is none
    return math.isfinite(low.item()) and math.isfinite(high.item())


Weight: TypeAlias = DenseWeight | QuantizedWeight | Fp8Weight


def concatenate(parts: list[Weight]) -> Weight:
    """Stack matrices along the output features, so that one product computes them all (q, k and v; gate and up).

    Parts of one quantised form stay quantised; parts of different group sizes, code widths or signs are first brought to a form
    that holds them all exactly. If any part is dense, or parts are of two
    kinds, all become dense float32.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, DenseWeight) for part in parts):
        return DenseWeight(torch.cat([part.dequantize() for part in parts]))
    eights = [part for part in parts if isinstance(part, Fp8Weight)]
    if len(eights) == len(parts):
        return Fp8Weight(torch.cat([part.codes for part in eights]), torch.cat([part.scales for part in eights]))
    quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
    if len(quantized) < len(parts):
        return DenseWeight(torch.cat([part.dequantize().to(torch.float32) for part in parts]))
    group_size = min(part.group_size for part in quantized)
    if any(part.group_size % group_size for part in quantized):
        return DenseWeight(torch.cat([part.dequantize() for part in parts]))
    signed = any(part.signed for part in quantized)
    # An unsigned code of 8 bits has no signed form of 8 bits; a GGUF never mixes such.
    bits = max(part.bits + (1 if signed and not part.signed else 0) for part in quantized)
    if bits > 8:
        return DenseWeight(torch.cat([part.dequantize() for part in parts]))
    with_mins = any(part.mins is not None for part in quantized)
    scales, mins = [], []
    for part in quantized:
        repeat = part.group_size // group_size
        scales.append(part.scales.repeat_interleave(repeat, dim=1))
        part_mins = torch.zeros_like(part.scales) if part.mins is None else part.mins
        mins.append(part_mins.repeat_interleave(repeat, dim=1))
    return QuantizedWeight(
        codes=torch.cat([part.codes for part in quantized]),
        scales=torch.cat(scales),
        mins=torch.cat(mins) if with_mins else None,
        group_size=group_size,
        bits=bits,
        signed=signed,
    )

"""Weights in the forms that the C kernels read: panels of floats in their stored type, or tiles of small codes with scales."""

from __future__ import annotations

from ctypes import pointer
from dataclasses import dataclass

import torch

from kernels.cpu.structs import (
    CODES_INT8,
    CODES_INT16,
    TILE,
    WEIGHT_BF16,
    WEIGHT_F16,
    WEIGHT_F32,
    WEIGHT_Q4,
    WEIGHT_Q8,
    PackArgs,
    WeightStruct,
)
from kernels.cpu.threads import ThreadPool
from kernels.weights import QuantizedWeight, Weight, all_finite

FLOAT_FORMS = {torch.float32: WEIGHT_F32, torch.float16: WEIGHT_F16, torch.bfloat16: WEIGHT_BF16}


@dataclass(frozen=True)
class PackedLinear:
    """A matrix and its bias, ready for `linear` and `embedding`."""

    in_features: int
    out_features: int
    struct: WeightStruct  # what the kernels see; it points into the tensors below
    data: torch.Tensor
    bias: torch.Tensor | None  # [out_features] float32
    code_bytes: int  # of the activations that meet it: CODES_INT8, CODES_INT16, or 0 for float32

    @property
    def group_size(self) -> int:
        return int(self.struct.group_size)


def pack(weight: Weight, bias: torch.Tensor | None, pool: ThreadPool, dtype: torch.dtype | None = None) -> PackedLinear:
    """Codes of up to 4 bits become Q4 tiles, of up to 8 bits Q8 tiles; what has neither form is kept in floats, of `dtype` if one is given.

    Raises ValueError where `dtype` cannot hold the weights.
    """
    if isinstance(weight, QuantizedWeight) and weight.group_size % 16 == 0:
        return pack_quantized(weight, bias, pool)
    matrix = weight.dequantize()
    if dtype is not None:
        matrix = matrix.to(dtype)
        if not all_finite(matrix):
            raise ValueError(f"its largest weights are beyond {str(dtype).removeprefix('torch.')}: use --dtype bfloat16, float32 or auto")
    return pack_dense(matrix, bias, pool)


def pack_dense(matrix: torch.Tensor, bias: torch.Tensor | None, pool: ThreadPool) -> PackedLinear:
    """[out, in] of any float type -> panels [out / 16, in, 16] of float32, float16 or bfloat16, as they came."""
    out_features, in_features = matrix.shape
    dtype = matrix.dtype if matrix.dtype in FLOAT_FORMS else torch.float32
    values = matrix.detach().to("cpu", dtype).contiguous()
    data = torch.empty(tiles(out_features) * in_features * TILE, dtype=dtype)
    struct = WeightStruct(form=FLOAT_FORMS[dtype], in_features=in_features, out_features=out_features, data=data.data_ptr())
    pool.run(PackArgs(pointer(struct), values.data_ptr()))
    return finish(struct, data, bias, 0)


def pack_quantized(weight: QuantizedWeight, bias: torch.Tensor | None, pool: ThreadPool) -> PackedLinear:
    out_features, in_features = weight.shape
    group_size = 32 if weight.group_size % 32 == 0 else 16
    repeat = weight.group_size // group_size
    scales, mins = weight.scales.to(torch.float32), weight.mins
    form = WEIGHT_Q4 if weight.bits <= 4 else WEIGHT_Q8
    # Q4 tiles hold unsigned codes, Q8 tiles signed ones; what a code is shifted by, the minimum takes back.
    offset = 0
    if form == WEIGHT_Q4 and weight.signed:
        offset = 1 << (weight.bits - 1)
    elif form == WEIGHT_Q8 and weight.bits == 8 and not weight.signed:
        offset = -128
    if offset:
        mins = (0.0 if mins is None else mins.to(torch.float32)) - offset * scales
    if mins is not None:
        mins = mins.to(torch.float32).repeat_interleave(repeat, dim=1).contiguous()
    scales = scales.repeat_interleave(repeat, dim=1).contiguous()
    scale_bytes = 2 if exact_in_half(scales) and (mins is None or exact_in_half(mins)) else 4
    code_bytes_per_group = TILE * group_size // (2 if form == WEIGHT_Q4 else 1)
    group_bytes = code_bytes_per_group + TILE * scale_bytes * (1 if mins is None else 2)
    data = torch.empty(tiles(out_features) * (in_features // group_size) * group_bytes, dtype=torch.uint8)
    struct = WeightStruct(
        form=form,
        in_features=in_features,
        out_features=out_features,
        group_size=group_size,
        scale_bytes=scale_bytes,
        has_mins=mins is not None,
        group_bytes=group_bytes,
        data=data.data_ptr(),
    )
    codes = weight.codes
    codes = (codes if codes.element_size() == 1 else codes.to(torch.int8)).contiguous()
    mins_address = None if mins is None else mins.data_ptr()
    pool.run(PackArgs(pointer(struct), codes.data_ptr(), scales.data_ptr(), mins_address, offset))
    return finish(struct, data, bias, CODES_INT8 if form == WEIGHT_Q4 else CODES_INT16)


def finish(struct: WeightStruct, data: torch.Tensor, bias: torch.Tensor | None, code_bytes: int) -> PackedLinear:
    if bias is not None:
        bias = bias.detach().to("cpu", torch.float32).contiguous()
        struct.bias = bias.data_ptr()
    return PackedLinear(struct.in_features, struct.out_features, struct, data, bias, code_bytes)


def tiles(out_features: int) -> int:
    return -(-out_features // TILE)


def exact_in_half(values: torch.Tensor) -> bool:
    """Whether float16 holds all of `values` without a change of any bit."""
    return bool(torch.equal(values.to(torch.float16).to(torch.float32), values))

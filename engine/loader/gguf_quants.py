"""GGUF's block formats as weights: each is exactly `scale * code + min` per group of 16 or 32 input features.

The layouts are those of ggml (ggml/src/ggml-common.h and ggml-quants.c). Below, `blocks` is uint8 [out_features, num_blocks,
block_bytes], and every result is laid out [out_features, ...] in the order of the input features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.weights import DenseWeight, QuantizedWeight, Weight

_DENSE_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_vector(data: torch.Tensor, type_name: str) -> torch.Tensor:
    """A tensor of one dimension, as float32: norms and biases. `data` is its bytes, uint8 [num_bytes].

    Raises ValueError for a type that is not a plain number.
    """
    if type_name not in _DENSE_TYPES:
        raise ValueError(f"a vector cannot be stored as {type_name}")
    return data.clone().view(_DENSE_TYPES[type_name]).float()


def read_matrix(data: torch.Tensor, type_name: str, shape: tuple[int, int]) -> Weight:
    """A matrix [out_features, in_features] from its bytes, uint8 [num_bytes]. Nothing of the result shares memory with `data`."""
    if type_name in _DENSE_TYPES:
        return DenseWeight(data.clone().view(_DENSE_TYPES[type_name]).view(shape))
    out_features, in_features = shape
    block_size, unpack = _UNPACK[type_name]
    return unpack(data.view(out_features, in_features // block_size, -1))


def _q4_0(blocks: torch.Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 2:], width=16)
    return _weight(codes.sub_(8), _half(blocks, 0), None, group_size=32, bits=4, signed=True)


def _q4_1(blocks: torch.Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 4:], width=16)
    return _weight(codes, _half(blocks, 0), _half(blocks, 2), group_size=32, bits=4, signed=False)


def _q5_0(blocks: torch.Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 6:], width=16) | _fifth_bits(blocks[..., 2:6])
    return _weight(codes.sub_(16), _half(blocks, 0), None, group_size=32, bits=5, signed=True)


def _q5_1(blocks: torch.Tensor) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 8:], width=16) | _fifth_bits(blocks[..., 4:8])
    return _weight(codes, _half(blocks, 0), _half(blocks, 2), group_size=32, bits=5, signed=False)


def _q8_0(blocks: torch.Tensor) -> QuantizedWeight:
    codes = blocks[..., 2:].contiguous()
    return _weight(codes, _half(blocks, 0), None, group_size=32, bits=8, signed=True)


def _q2_k(blocks: torch.Tensor) -> QuantizedWeight:
    packed_scales, quarters = blocks[..., :16], blocks[..., 16:80]
    scales = _half(blocks, 80) * (packed_scales & 15)
    mins = -(_half(blocks, 82) * (packed_scales >> 4))
    return _weight(_crumbs(quarters), scales, mins, group_size=16, bits=2, signed=False)


def _q3_k(blocks: torch.Tensor) -> QuantizedWeight:
    high_bits, quarters, packed_scales = blocks[..., :32], blocks[..., 32:96], blocks[..., 96:108]
    # 16 scales of 6 bits: the low 4 bits of all in 8 bytes, then the high 2 bits of all in 4.
    low = torch.cat((packed_scales[..., :8] & 15, packed_scales[..., :8] >> 4), dim=-1)
    high = torch.cat([(packed_scales[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1)
    scales = _half(blocks, 108) * ((low | (high << 4)).to(torch.float32) - 32)
    # A high bit that is clear takes 4 away.
    codes = (_crumbs(quarters).flatten(-3) | (_bit_planes(high_bits).flatten(-2) << 2)).sub_(4)
    return _weight(codes, scales, None, group_size=16, bits=3, signed=True)


def _q4_k(blocks: torch.Tensor) -> QuantizedWeight:
    scales, mins = _scales_and_mins_of_6_bits(blocks)
    return _weight(_nibbles(blocks[..., 16:], width=32), scales, mins, group_size=32, bits=4, signed=False)


def _q5_k(blocks: torch.Tensor) -> QuantizedWeight:
    scales, mins = _scales_and_mins_of_6_bits(blocks)
    codes = _nibbles(blocks[..., 48:], width=32).flatten(-3) | (_bit_planes(blocks[..., 16:48]).flatten(-2) << 4)
    return _weight(codes, scales, mins, group_size=32, bits=5, signed=False)


def _q6_k(blocks: torch.Tensor) -> QuantizedWeight:
    low, high, packed_scales = blocks[..., :128], blocks[..., 128:192], blocks[..., 192:208]
    scales = _half(blocks, 208) * packed_scales.contiguous().view(torch.int8)
    codes = (_nibbles(low, width=64).flatten(-3) | (_crumbs(high).flatten(-3) << 4)).sub_(32)
    return _weight(codes, scales, None, group_size=16, bits=6, signed=True)


_UNPACK: dict[str, tuple[int, Callable[[torch.Tensor], QuantizedWeight]]] = {
    "Q4_0": (32, _q4_0),
    "Q4_1": (32, _q4_1),
    "Q5_0": (32, _q5_0),
    "Q5_1": (32, _q5_1),
    "Q8_0": (32, _q8_0),
    "Q2_K": (256, _q2_k),
    "Q3_K": (256, _q3_k),
    "Q4_K": (256, _q4_k),
    "Q5_K": (256, _q5_k),
    "Q6_K": (256, _q6_k),
}


def _weight(
    codes: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, group_size: int, bits: int, signed: bool
) -> QuantizedWeight:
    """Flatten what is laid out per block. Codes below zero wrapped around in uint8, which is their int8 form."""
    return QuantizedWeight(
        codes=codes.flatten(1).view(torch.int8),
        scales=scales.flatten(1),
        mins=None if mins is None else mins.flatten(1),
        group_size=group_size,
        bits=bits,
        signed=signed,
    )


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block, as float32 [out_features, num_blocks, 1]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, width: int) -> torch.Tensor:
    """4-bit codes: of each run of `width` bytes first all low halves, then all high ones. -> [..., runs, 2, width]."""
    runs = _split(packed, width)
    codes = runs.new_empty((*runs.shape[:-1], 2, width))
    torch.bitwise_and(runs, 15, out=codes[..., 0, :])
    torch.bitwise_right_shift(runs, 4, out=codes[..., 1, :])
    return codes


def _crumbs(packed: torch.Tensor) -> torch.Tensor:
    """2-bit codes: of each run of 32 bytes first the lowest two bits of all, then the next two, ... -> [..., runs, 4, 32]."""
    runs = _split(packed, 32)
    return torch.stack([(runs >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-2)


def _bit_planes(packed: torch.Tensor) -> torch.Tensor:
    """1-bit codes: of 32 bytes first the lowest bit of all, then the next, ... -> [..., 8, 32]."""
    return torch.stack([(packed >> shift) & 1 for shift in range(8)], dim=-2)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 32 codes, bit i of 4 bytes for code i, in their place. -> [..., 1, 2, 16], like `_nibbles`."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (packed.unsqueeze(-1) >> shifts) & 1
    return (bits << 4).reshape(*packed.shape[:-1], 1, 2, 16)


def _split(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Runs of `width` bytes: [..., n] -> [..., n / width, width], without copying."""
    return packed.view(*packed.shape[:-1], packed.shape[-1] // width, width)


def _scales_and_mins_of_6_bits(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and mins of the 8 groups of a Q4_K or Q5_K block, each [out_features, num_blocks, 8].

    12 bytes hold 8 scales and 8 mins of 6 bits. Groups 0 to 3 have theirs in the low 6 bits of bytes 0 to 3 and 4 to 7; of groups 4
    to 7 the low 4 bits are the halves of bytes 8 to 11, and the high 2 bits are the tops of bytes 0 to 7.
    """
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=-1)
    mins = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=-1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * mins)

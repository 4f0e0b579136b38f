"""GGUF's block formats as weights: each is exactly `scale * code + min` per group of 16 or 32 input features.

The layouts are those of ggml (ggml/src/ggml-common.h and ggml-quants.c). Below, `blocks` is uint8 [out_features, num_blocks,
block_bytes], and every result is laid out [out_features, num_blocks, ...] in the order of the input features.

NumPy rather than PyTorch: the operations are small and many, and waiting for a second thread in each of them costs more than it
brings as soon as another process wants the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.weights import DenseWeight, QuantizedWeight, Weight

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_DENSE_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_vector(data: Bytes, type_name: str) -> torch.Tensor:
    """A tensor of one dimension, F32, F16 or BF16, as float32: norms and biases. `data` is its bytes, [num_bytes], and is not kept."""
    return _dense(data, type_name).float()


def read_matrix(rows: Bytes, type_name: str, in_features: int) -> Weight:
    """A matrix from the bytes of its rows, [out_features, num_bytes], which are not kept."""
    if type_name in _DENSE_TYPES:
        return DenseWeight(_dense(rows, type_name))
    block_size, unpack = _UNPACK[type_name]
    num_blocks = in_features // block_size
    return unpack(rows.reshape(rows.shape[0], num_blocks, rows.shape[1] // num_blocks))


def _dense(data: Bytes, type_name: str) -> torch.Tensor:
    return torch.from_numpy(data.copy()).view(_DENSE_TYPES[type_name])


def _q4_0(blocks: Bytes) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 2:], width=16) - np.uint8(8)
    return _weight(codes, _half(blocks, 0), None, group_size=32, bits=4, signed=True)


def _q4_1(blocks: Bytes) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 4:], width=16)
    return _weight(codes, _half(blocks, 0), _half(blocks, 2), group_size=32, bits=4, signed=False)


def _q5_0(blocks: Bytes) -> QuantizedWeight:
    codes = (_nibbles(blocks[..., 6:], width=16) | _fifth_bits(blocks[..., 2:6])) - np.uint8(16)
    return _weight(codes, _half(blocks, 0), None, group_size=32, bits=5, signed=True)


def _q5_1(blocks: Bytes) -> QuantizedWeight:
    codes = _nibbles(blocks[..., 8:], width=16) | _fifth_bits(blocks[..., 4:8])
    return _weight(codes, _half(blocks, 0), _half(blocks, 2), group_size=32, bits=5, signed=False)


def _q8_0(blocks: Bytes) -> QuantizedWeight:
    return _weight(blocks[..., 2:].copy(), _half(blocks, 0), None, group_size=32, bits=8, signed=True)


def _q2_k(blocks: Bytes) -> QuantizedWeight:
    packed_scales, quarters = blocks[..., :16], blocks[..., 16:80]
    scales = _half(blocks, 80) * (packed_scales & 15)
    mins = -(_half(blocks, 82) * (packed_scales >> 4))
    return _weight(_crumbs(quarters), scales, mins, group_size=16, bits=2, signed=False)


def _q3_k(blocks: Bytes) -> QuantizedWeight:
    high_bits, quarters, packed_scales = blocks[..., :32], blocks[..., 32:96], blocks[..., 96:108]
    # 16 scales of 6 bits: the low 4 bits of all in 8 bytes, then the high 2 bits of all in 4.
    low = np.concatenate((packed_scales[..., :8] & 15, packed_scales[..., :8] >> 4), axis=-1)
    high = np.concatenate([(packed_scales[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scales = _half(blocks, 108) * ((low | (high << 4)).astype(np.float32) - 32)
    # A high bit that is clear takes 4 away.
    codes = (_flat(_crumbs(quarters)) | (_flat(_bit_planes(high_bits)) << np.uint8(2))) - np.uint8(4)
    return _weight(codes, scales, None, group_size=16, bits=3, signed=True)


def _q4_k(blocks: Bytes) -> QuantizedWeight:
    scales, mins = _scales_and_mins_of_6_bits(blocks)
    return _weight(_nibbles(blocks[..., 16:], width=32), scales, mins, group_size=32, bits=4, signed=False)


def _q5_k(blocks: Bytes) -> QuantizedWeight:
    scales, mins = _scales_and_mins_of_6_bits(blocks)
    codes = _flat(_nibbles(blocks[..., 48:], width=32)) | (_flat(_bit_planes(blocks[..., 16:48])) << np.uint8(4))
    return _weight(codes, scales, mins, group_size=32, bits=5, signed=False)


def _q6_k(blocks: Bytes) -> QuantizedWeight:
    low, high, packed_scales = blocks[..., :128], blocks[..., 128:192], blocks[..., 192:208]
    scales = _half(blocks, 208) * np.ascontiguousarray(packed_scales).view(np.int8)
    codes = (_flat(_nibbles(low, width=64)) | (_flat(_crumbs(high)) << np.uint8(4))) - np.uint8(32)
    return _weight(codes, scales, None, group_size=16, bits=6, signed=True)


# What a code of IQ4_NL and IQ4_XS stands for: closer together around zero, where most weights are. All fit into 8 bits.
_UNEVEN_STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8).view(np.uint8)


def _iq4_nl(blocks: Bytes) -> QuantizedWeight:
    codes = _UNEVEN_STEPS[_nibbles(blocks[..., 2:], width=16)]
    return _weight(codes, _half(blocks, 0), None, group_size=32, bits=8, signed=True)


def _iq4_xs(blocks: Bytes) -> QuantizedWeight:
    # 8 scales of 6 bits: the high 2 bits of all in bytes 2 and 3, the low 4 bits in bytes 4 to 7, two in each.
    high = np.stack([(blocks[..., 2 + i // 4] >> (2 * i % 8)) & 3 for i in range(8)], axis=-1)
    low = np.stack([(blocks[..., 4 + i // 2] >> (4 * i % 8)) & 15 for i in range(8)], axis=-1)
    scales = _half(blocks, 0) * ((low | (high << 4)).astype(np.float32) - 32)
    codes = _UNEVEN_STEPS[_nibbles(blocks[..., 8:], width=16)]
    return _weight(codes, scales, None, group_size=32, bits=8, signed=True)


_UNPACK: dict[str, tuple[int, Callable[[Bytes], QuantizedWeight]]] = {
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
    "IQ4_NL": (32, _iq4_nl),
    "IQ4_XS": (256, _iq4_xs),
}


def _weight(codes: Bytes, scales: Floats, mins: Floats | None, group_size: int, bits: int, signed: bool) -> QuantizedWeight:
    """Flatten what is laid out per block. Codes below zero wrapped around in uint8, which is their int8 form."""
    out_features = codes.shape[0]
    return QuantizedWeight(
        codes=torch.from_numpy(codes.reshape(out_features, -1).view(np.int8)),
        scales=torch.from_numpy(scales.reshape(out_features, -1)),
        mins=None if mins is None else torch.from_numpy(mins.reshape(out_features, -1)),
        group_size=group_size,
        bits=bits,
        signed=signed,
    )


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block, as float32 [out_features, num_blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes, width: int) -> Bytes:
    """4-bit codes: of each run of `width` bytes first all low halves, then all high ones. -> [..., runs, 2, width]."""
    runs = _runs(packed, width)
    codes = np.empty((*runs.shape[:-1], 2, width), np.uint8)
    np.bitwise_and(runs, 15, out=codes[..., 0, :])
    np.right_shift(runs, 4, out=codes[..., 1, :])
    return codes


def _crumbs(packed: Bytes) -> Bytes:
    """2-bit codes: of each run of 32 bytes first the lowest two bits of all, then the next two, ... -> [..., runs, 4, 32]."""
    runs = _runs(packed, 32)
    return np.stack([(runs >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-2)


def _bit_planes(packed: Bytes) -> Bytes:
    """1-bit codes: of 32 bytes first the lowest bit of all, then the next, ... -> [..., 8, 32]."""
    return np.stack([(packed >> shift) & 1 for shift in range(8)], axis=-2)


def _fifth_bits(packed: Bytes) -> Bytes:
    """The fifth bits of 32 codes, bit i of 4 bytes for code i, in their place. -> [..., 1, 2, 16], like `_nibbles`."""
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    return (bits << np.uint8(4)).reshape(*packed.shape[:-1], 1, 2, 16)


def _runs(packed: Bytes, width: int) -> Bytes:
    """[..., n] -> [..., n / width, width]."""
    return packed.reshape(*packed.shape[:-1], packed.shape[-1] // width, width)


def _flat(codes: Bytes) -> Bytes:
    """All codes of a block in one dimension: [out_features, num_blocks, ...] -> [out_features, num_blocks, n]."""
    return codes.reshape(*codes.shape[:2], -1)


def _scales_and_mins_of_6_bits(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and mins of the 8 groups of a Q4_K or Q5_K block, each [out_features, num_blocks, 8].

    12 bytes hold 8 scales and 8 mins of 6 bits. Groups 0 to 3 have theirs in the low 6 bits of bytes 0 to 3 and 4 to 7; of groups 4
    to 7 the low 4 bits are the halves of bytes 8 to 11, and the high 2 bits are the tops of bytes 0 to 7.
    """
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 2) & 48)), axis=-1)
    mins = np.concatenate((second & 63, (third >> 4) | ((second >> 2) & 48)), axis=-1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * mins)

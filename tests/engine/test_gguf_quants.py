from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engine.loader.gguf_file import BLOCK_TYPES
from engine.loader.gguf_quants import read_matrix, read_vector
from kernels.weights import DenseWeight, QuantizedWeight

OUT_FEATURES, IN_FEATURES = 6, 512
TYPES = list(BLOCK_TYPES.values())
QUANTIZED = [block_type for block_type in TYPES if block_type.block_size > 1]
# Where the float16 scales of a block lie, in bytes: random bits there would be infinities.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
FORMS = {  # group size, bits, signed, with mins
    "Q4_0": (32, 4, True, False), "Q4_1": (32, 4, False, True), "Q5_0": (32, 5, True, False), "Q5_1": (32, 5, False, True),
    "Q8_0": (32, 8, True, False), "Q2_K": (16, 2, False, True), "Q3_K": (16, 3, True, False), "Q4_K": (32, 4, False, True),
    "Q5_K": (32, 5, False, True), "Q6_K": (16, 6, True, False),
    "IQ4_NL": (32, 8, True, False), "IQ4_XS": (32, 8, True, False),
}  # fmt: skip


def random_rows(name: str, block_size: int, block_bytes: int, out_features: int = OUT_FEATURES, seed: int = 0) -> np.ndarray:
    """Blocks in which every bit pattern of codes and packed scales may occur."""
    rng = np.random.default_rng(seed)
    num_blocks = IN_FEATURES // block_size
    blocks = rng.integers(0, 256, (out_features, num_blocks, block_bytes), dtype=np.uint8)
    for at in HALVES[name]:
        scales = rng.normal(size=(out_features, num_blocks, 1)).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(out_features, -1)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_every_block_format_becomes_exactly_what_ggml_dequantises(kind) -> None:
    rows = random_rows(kind.name, kind.block_size, kind.block_bytes)
    weight = read_matrix(rows, kind.name, IN_FEATURES)
    assert isinstance(weight, QuantizedWeight)
    expected = dequantize(rows, gguf.GGMLQuantizationType[kind.name])
    assert weight.shape == (OUT_FEATURES, IN_FEATURES)
    torch.testing.assert_close(weight.dequantize(), torch.from_numpy(expected), rtol=0, atol=0)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_codes_keep_within_the_bounds_that_the_weight_declares(kind) -> None:
    weight = read_matrix(random_rows(kind.name, kind.block_size, kind.block_bytes, out_features=64), kind.name, IN_FEATURES)
    group_size, bits, signed, with_mins = FORMS[kind.name]
    assert (weight.group_size, weight.bits, weight.signed, weight.mins is not None) == (group_size, bits, signed, with_mins)
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    # All codes occur among this many random ones. Those of IQ4 stand for 16 numbers of 8 bits.
    expected = (-127, 113) if kind.name.startswith("IQ4") else (lowest, highest)
    assert (int(weight.codes.min()), int(weight.codes.max())) == expected
    assert weight.scales.shape == (64, IN_FEATURES // group_size)
    assert weight.scales.dtype == torch.float32


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_matrices_keep_their_type_and_values(name: str) -> None:
    values = np.random.default_rng(0).normal(size=(OUT_FEATURES, IN_FEATURES)).astype(np.float32)
    stored = quantize(values, gguf.GGMLQuantizationType[name])
    rows = np.ascontiguousarray(stored).view(np.uint8).reshape(OUT_FEATURES, -1)
    weight = read_matrix(rows, name, IN_FEATURES)
    assert isinstance(weight, DenseWeight)
    assert weight.data.dtype == {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
    expected = dequantize(stored, gguf.GGMLQuantizationType[name])
    assert torch.equal(weight.data.float(), torch.from_numpy(expected.astype(np.float32)))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_weight_shares_no_memory_with_the_file(kind) -> None:
    if kind.block_size > 1:
        rows = random_rows(kind.name, kind.block_size, kind.block_bytes)[:1, : kind.block_bytes]
    else:
        rows = np.zeros((1, 32 * kind.block_bytes), np.uint8)
    rows = np.ascontiguousarray(rows)
    weight = read_matrix(rows, kind.name, max(kind.block_size, 32))
    before = weight.dequantize().clone()
    rows[:] ^= 0x11
    assert torch.equal(weight.dequantize(), before)


def test_vectors_become_float32() -> None:
    values = torch.tensor([1.5, -2.0, 0.25])
    stored = values.to(torch.bfloat16).view(torch.uint8).numpy()
    assert torch.equal(read_vector(stored, "BF16"), values)

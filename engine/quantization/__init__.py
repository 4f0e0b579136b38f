"""What becomes of a checkpoint's matrices on their way to the kernels: one entry for each value of `--quantization`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from engine.errors import ModelLoadError
from kernels.quantize import quantize
from kernels.weights import DenseWeight, Fp8Weight, Weight

# Takes a matrix under its name in the checkpoint, returns the one to be packed. Called for one matrix at a time, as it is read, so that
# no more than a layer is ever held twice.
Conversion: TypeAlias = Callable[[str, Weight], Weight]


# An error in the table of embeddings or the output layer is in every token's logits, with nothing to average it.
_OUTER = ("model.embed_tokens.weight", "lm_head.weight")


def conversion_to(quantization: str) -> Conversion:
    return _CONVERSIONS[quantization]


def _as_stored(name: str, weight: Weight) -> Weight:
    return weight


def _dequantized(name: str, weight: Weight) -> Weight:
    return DenseWeight(weight.dequantize())


def _int8(name: str, weight: Weight) -> Weight:
    return quantize(_floats(name, weight, "int8"), bits=8)


def _int4(name: str, weight: Weight) -> Weight:
    return quantize(_floats(name, weight, "int4"), bits=8 if name in _OUTER else 4)


def _fp8(name: str, weight: Weight) -> Weight:
    floats = _floats(name, weight, "fp8")
    return floats if name in _OUTER else Fp8Weight.of(floats.data)


def _floats(name: str, weight: Weight, quantization: str) -> DenseWeight:
    if isinstance(weight, DenseWeight):
        return weight
    raise ModelLoadError(
        f"quantization {quantization} is for checkpoints of floats, but {name} is stored in {weight.bits} bits already: "
        "use --quantization auto, which serves it as it is stored, or none"
    )


_CONVERSIONS: dict[str, Conversion] = {"auto": _as_stored, "none": _dequantized, "int8": _int8, "int4": _int4, "fp8": _fp8}

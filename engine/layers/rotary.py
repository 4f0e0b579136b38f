"""The table of rotary position embeddings, for every scaling that transformers knows for the Llama family.

The table is computed once for all positions, so a token's rotation depends on its position alone, never on how long the sequence has
become meanwhile. Where a scaling is defined by the sequence length (dynamic, longrope), the longest sequence that the engine serves
stands for it; see docs/decisions/rope-scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine.errors import ModelLoadError
from engine.model_config import RopeConfig


def build_cos_sin(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> torch.Tensor:
    """[max_positions, rotary_dim] float32: cosines of the rotary_dim / 2 frequencies, then their sines.

    Raises ModelLoadError for an unknown scaling or one whose parameters are missing.
    """
    try:
        scaling = SCALINGS[rope.kind]
    except KeyError:
        raise ModelLoadError(f"RoPE scaling {rope.kind!r} is not supported; supported are {', '.join(sorted(SCALINGS))}") from None
    try:
        inverse_frequencies, attention_factor = scaling(rope, max_positions, max_position_embeddings)
    except KeyError as error:
        raise ModelLoadError(f"RoPE scaling {rope.kind!r} needs the parameter {error}") from None
    factors = rope.parameters.get("freq_factors")  # a GGUF stores llama3 and longrope scaling as one divisor per frequency
    if factors is not None:
        inverse_frequencies = inverse_frequencies / torch.tensor(factors, dtype=torch.float32)
    angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * inverse_frequencies
    return torch.cat((angles.cos() * attention_factor, angles.sin() * attention_factor), dim=1)


Frequencies = tuple[torch.Tensor, float]  # [rotary_dim / 2] inverse frequencies, and what cosines and sines are multiplied by


def _default(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """Su et al. (2021), section 3.2.2."""
    return _inverse_frequencies(rope.theta, rope.rotary_dim), 1.0


def _linear(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """Position interpolation (Chen et al., 2023)."""
    return _inverse_frequencies(rope.theta, rope.rotary_dim) / rope.parameters["factor"], 1.0


def _dynamic(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """Dynamic NTK: the base grows with the length beyond the original one."""
    original = rope.parameters.get("original_max_position_embeddings", max_position_embeddings)
    factor, dim = rope.parameters["factor"], rope.rotary_dim
    stretch = factor * max(max_positions, original) / original - (factor - 1)
    return _inverse_frequencies(rope.theta * stretch ** (dim / (dim - 2)), dim), 1.0


def _yarn(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """YaRN (Peng et al., 2023): high frequencies as they are, low ones interpolated, a ramp between."""
    p, dim, base = rope.parameters, rope.rotary_dim, rope.theta
    original = p.get("original_max_position_embeddings") or max_position_embeddings
    factor = p.get("factor") or max_position_embeddings / original
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all_dim = p.get("mscale"), p.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            attention_factor = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all_dim)
        else:
            attention_factor = _yarn_mscale(factor, 1.0)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low: float = dimension_of(p.get("beta_fast") or 32)
    high: float = dimension_of(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    plain = _inverse_frequencies(base, dim)
    return plain / factor * interpolated + plain * (1 - interpolated), float(attention_factor)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """LongRoPE (Ding et al., 2024): one searched factor per frequency, for short and for long contexts."""
    p = rope.parameters
    original = p.get("original_max_position_embeddings") or max_position_embeddings
    factor = p.get("factor") or max_position_embeddings / original
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    factors = p["long_factor"] if max_positions > original else p["short_factor"]
    plain = _inverse_frequencies(rope.theta, rope.rotary_dim)
    if len(factors) != len(plain):
        raise ModelLoadError(f"longrope has {len(factors)} factors for {len(plain)} frequencies")
    return plain / torch.tensor(factors, dtype=torch.float32), float(attention_factor)


def _llama3(rope: RopeConfig, max_positions: int, max_position_embeddings: int) -> Frequencies:
    """Llama 3.1: wavelengths beyond the original context are stretched by the factor, those well inside it not, a ramp between."""
    p = rope.parameters
    factor, original = p["factor"], p["original_max_position_embeddings"]
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    plain = _inverse_frequencies(rope.theta, rope.rotary_dim)
    wavelength = 2 * math.pi / plain
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / factor + smooth * plain, 1.0


def _inverse_frequencies(theta: float, rotary_dim: int) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).to(torch.float32) / rotary_dim))


SCALINGS: dict[str, Callable[[RopeConfig, int, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}

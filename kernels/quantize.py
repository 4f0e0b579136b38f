"""A matrix of floats as small integer codes, rounded group by group: what `--quantization int8` and `int4` do to a checkpoint.

Two forms of `kernels.weights.QuantizedWeight`:

    int8    signed codes in [-127, 127], no minimum: scale = largest magnitude of the group / 127
    int4    unsigned codes in [0, 15] and a minimum. From the scale that spans the group, codes and the line through them are fitted to
            each other in turn, as in Lloyd (1982): a third of the squared error goes away, which costs nothing afterwards

Scales and minimums are float16 values, so that kernels may store them in two bytes. No data is needed, nothing is calibrated.
"""

from __future__ import annotations

import torch

from kernels.weights import DenseWeight, QuantizedWeight, Weight

GROUP_SIZES = (32, 16)  # input features; the first that divides them is taken
_REFINEMENTS = 3
_CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 24}  # that are worked on at once: they stay in a processor's cache, or fill a GPU


def quantize(weight: DenseWeight, bits: int) -> Weight:
    """The matrix in codes of 8 or 4 bits; one whose input features are no multiple of 16 is returned as it is."""
    matrix = weight.data
    out_features, in_features = matrix.shape
    group_size = next((size for size in GROUP_SIZES if in_features % size == 0), None)
    if group_size is None:
        return weight
    groups = in_features // group_size
    codes = matrix.new_empty((out_features, groups, group_size), dtype=torch.int8)
    scales = matrix.new_empty((out_features, groups, 1), dtype=torch.float32)
    mins = torch.empty_like(scales) if bits == 4 else None
    rows = max(1, _CHUNK_ELEMENTS[matrix.device.type] // in_features)
    for start in range(0, out_features, rows):
        part = slice(start, start + rows)
        values = matrix[part].to(torch.float32).reshape(-1, groups, group_size)
        if mins is None:
            codes[part], scales[part] = _symmetric(values)
        else:
            codes[part], scales[part], mins[part] = _affine(values)
    return QuantizedWeight(
        codes=codes.view(out_features, in_features),
        scales=scales.view(out_features, groups),
        mins=None if mins is None else mins.view(out_features, groups),
        group_size=group_size,
        bits=bits,
        signed=mins is None,
    )


def _symmetric(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 bits and scales of groups [..., group_size]."""
    exact = values.abs().amax(-1, keepdim=True) / 127
    scales = _as_half(exact)
    # Up, never down, to the next float16: the largest value keeps a code of its own, however small the group's values are.
    above = (scales.to(torch.float16).view(torch.int16) + 1).view(torch.float16).to(torch.float32)
    scales = torch.where(scales < exact, above, scales)
    return _round(values, scales).clamp_(-127, 127), scales


def _affine(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of 4 bits, scales and minimums of groups [..., group_size]."""
    low, high = values.aminmax(dim=-1, keepdim=True)
    scales, mins = (high - low) / 15, low
    mean = values.mean(-1, keepdim=True)
    for _ in range(_REFINEMENTS):
        codes = _round(values - mins, scales).clamp_(0, 15)
        # The line through (code, value) with the least squares; where all codes are equal there is none, and what was stays.
        mean_code = codes.mean(-1, keepdim=True)
        codes -= mean_code
        spread = codes.square().sum(-1, keepdim=True)
        slope = (codes * values).sum(-1, keepdim=True) / spread
        fitted = spread > 0
        scales = torch.where(fitted, slope, scales)
        mins = torch.where(fitted, mean - slope * mean_code, mins)
    scales, mins = _as_half(scales), _as_half(mins)
    return _round(values - mins, scales).clamp_(0, 15), scales, mins


def _round(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """values / scales to the nearest integer; zero where the scale is."""
    return (values * torch.where(scales > 0, 1 / scales, 0.0)).round_()


def _as_half(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float16, but for what that cannot hold."""
    rounded = values.to(torch.float16).to(torch.float32)
    return torch.where(rounded.isfinite(), rounded, values)

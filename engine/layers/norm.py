"""Root mean square normalisation."""

from __future__ import annotations

import torch

from engine.layers.parameters import Parameters, expect_vector
from kernels.ops import Ops
from kernels.weights import Weight


class RMSNorm:
    """x / rms(x) * weight (Zhang and Sennrich, 2019), alone or fused with the addition to the residual stream before it."""

    def __init__(self, parameters: Parameters, name: str, size: int, eps: float):
        self.weight = torch.empty(0)
        self._size = size
        self.eps = eps
        parameters.expect(f"{name}.weight", self._take)

    def __call__(self, ops: Ops, x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, ops: Ops, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(residual + x), residual + x); the residual is updated in place."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def _take(self, ops: Ops, weight: Weight | torch.Tensor) -> None:
        self.weight = expect_vector(weight, self._size).to(ops.device, torch.float32).contiguous()

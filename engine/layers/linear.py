"""Linear layers, made of one or several matrices of the checkpoint."""

from __future__ import annotations

from functools import partial

import torch

from engine.layers.parameters import Parameters, Shard, expect_matrix, expect_vector
from kernels.ops import Ops, PackedWeight
from kernels.weights import Weight, concatenate


class Linear:
    """x @ weight.T + bias, with the output features of all `parts` side by side, so that one product computes them.

    `parts` maps the name of each matrix in the checkpoint (without `.weight`) to its output features.
    """

    def __init__(self, parameters: Parameters, parts: dict[str, int], in_features: int, bias: bool = False, shard: Shard | None = None):
        self.packed: PackedWeight = None
        self._in_features = in_features
        self._shard = shard or Shard()
        self._sizes = parts
        self._has_bias = bias
        self._matrices: dict[str, Weight] = {}
        self._biases: dict[str, torch.Tensor] = {}
        for part in parts:
            parameters.expect(f"{part}.weight", partial(self._take_matrix, part))
            if bias:
                parameters.expect(f"{part}.bias", partial(self._take_bias, part))

    def __call__(self, ops: Ops, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.packed)

    def _take_matrix(self, part: str, ops: Ops, weight: Weight | torch.Tensor) -> None:
        self._matrices[part] = self._shard.columns(expect_matrix(weight, self._sizes[part], self._in_features))
        self._pack_when_complete(ops)

    def _take_bias(self, part: str, ops: Ops, bias: Weight | torch.Tensor) -> None:
        self._biases[part] = expect_vector(bias, self._sizes[part])
        self._pack_when_complete(ops)

    def _pack_when_complete(self, ops: Ops) -> None:
        if len(self._matrices) < len(self._sizes) or (self._has_bias and len(self._biases) < len(self._sizes)):
            return
        bias = torch.cat([self._biases[part] for part in self._sizes]) if self._has_bias else None
        self.packed = ops.pack_linear(concatenate([self._matrices[part] for part in self._sizes]), bias)
        # The checkpoint's own form is not needed any more; holding it would double the memory.
        self._matrices.clear()
        self._biases.clear()


class Embedding:
    """The table of token vectors; when tied, it is the output layer too."""

    def __init__(self, parameters: Parameters, name: str, vocab_size: int, hidden_size: int):
        self.packed: PackedWeight = None
        self._shape = (vocab_size, hidden_size)
        parameters.expect(f"{name}.weight", self._take)

    def __call__(self, ops: Ops, token_ids: torch.Tensor) -> torch.Tensor:
        return ops.embedding(token_ids, self.packed)

    def _take(self, ops: Ops, weight: Weight | torch.Tensor) -> None:
        self.packed = ops.pack_linear(expect_matrix(weight, *self._shape), None)

"""How the tensors of a checkpoint find their layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from engine.errors import ModelLoadError
from engine.quantization import conversion_to
from kernels.ops import Ops
from kernels.weights import Weight, all_finite

# Takes one tensor of the checkpoint; packs its layer once all of its tensors are there.
Taker = Callable[[Ops, "Weight | torch.Tensor"], None]


@dataclass(frozen=True)
class Shard:
    """Which part of every weight this worker holds: tensor parallelism (Shoeybi et al., 2019, section 3)."""

    rank: int = 0
    size: int = 1

    def columns(self, weight: Weight) -> Weight:
        """This worker's output features."""
        if self.size == 1:
            return weight
        per_rank = weight.shape[0] // self.size
        return weight.rows(self.rank * per_rank, (self.rank + 1) * per_rank)


class Parameters:
    """The tensors that a model expects, by their names in the checkpoint."""

    def __init__(self) -> None:
        self._takers: dict[str, Taker] = {}
        self._ignored: set[str] = set()

    def expect(self, name: str, taker: Taker) -> None:
        assert name not in self._takers, f"{name} is expected twice"
        self._takers[name] = taker

    def ignore(self, name: str) -> None:
        """Some checkpoints hold this one; the model does not need it."""
        self._ignored.add(name)

    def load(self, weights: Iterable[tuple[str, Weight | torch.Tensor]], ops: Ops, quantization: str = "auto") -> None:
        """Hand each tensor to its layer, matrices in the form that `quantization` (EngineConfig) asks for.

        Each goes to the device of `ops` first: what is done with it, quantising and joining to others, is then done there.
        Raises ModelLoadError if one is missing, unknown, of the wrong shape, not finite, or in a form that cannot be brought to the
        one asked for.
        """
        convert = conversion_to(quantization)
        missing = dict(self._takers)
        for name, weight in weights:
            if name in self._ignored or name.endswith("rotary_emb.inv_freq"):
                continue
            taker = missing.pop(name, None)
            if taker is None:
                problem = "holds twice" if name in self._takers else "holds a tensor that its architecture does not have:"
                raise ModelLoadError(f"the checkpoint {problem} {name}")
            weight = weight.to(ops.device)
            if not (all_finite(weight) if isinstance(weight, torch.Tensor) else weight.is_finite()):
                raise ModelLoadError(
                    f"the checkpoint's {name} holds numbers that are infinite or none (NaN): it is damaged, download it again"
                )
            try:
                taker(ops, weight if isinstance(weight, torch.Tensor) else convert(name, weight))
            except ShapeError as error:
                raise ModelLoadError(f"the checkpoint's {name} {error}: its config and its weights do not belong together") from error
            except ValueError as error:  # the kernels cannot compute it on this device
                raise ModelLoadError(f"{name} cannot be served as it is: {error}") from error
        if missing:
            names = sorted(missing)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelLoadError(f"the checkpoint lacks {', '.join(names[:3])}{more}")


class ShapeError(ValueError):
    """A tensor that is not what its layer is made for."""


def expect_matrix(weight: Weight | torch.Tensor, out_features: int, in_features: int) -> Weight:
    if isinstance(weight, torch.Tensor) or weight.shape != (out_features, in_features):
        raise ShapeError(f"has shape {list(weight.shape)}, not {[out_features, in_features]}")
    return weight


def expect_vector(weight: Weight | torch.Tensor, size: int) -> torch.Tensor:
    if not isinstance(weight, torch.Tensor) or weight.shape != (size,):
        raise ShapeError(f"has shape {list(weight.shape)}, not {[size]}")
    return weight

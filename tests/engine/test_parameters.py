from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.errors import ModelLoadError
from engine.layers.linear import Embedding, Linear
from engine.layers.norm import RMSNorm
from engine.layers.parameters import Parameters, Shard
from kernels.reference import ReferenceOps
from kernels.weights import DenseWeight, QuantizedWeight, Weight

OPS = ReferenceOps(torch.device("cpu"), torch.float32)
Tensors = dict[str, Weight | torch.Tensor]


class TinyModel:
    """Every kind of layer once."""

    def __init__(self) -> None:
        self.parameters = Parameters()
        self.embedding = Embedding(self.parameters, "embed", 10, 4)
        self.qkv = Linear(self.parameters, {"q": 4, "k": 2, "v": 2}, 4, bias=True)
        self.norm = RMSNorm(self.parameters, "norm", 4, 1e-5)
        self.parameters.ignore("lm_head.weight")


def tensors() -> Tensors:
    torch.manual_seed(0)
    result: Tensors = {"embed.weight": DenseWeight(torch.randn(10, 4)), "norm.weight": torch.randn(4)}
    for name, size in (("q", 4), ("k", 2), ("v", 2)):
        result[f"{name}.weight"] = DenseWeight(torch.randn(size, 4))
        result[f"{name}.bias"] = torch.randn(size)
    return result


def load(tensors: Tensors | list[tuple[str, Weight | torch.Tensor]], quantization: str = "auto") -> TinyModel:
    model = TinyModel()
    model.parameters.load(tensors.items() if isinstance(tensors, dict) else tensors, OPS, quantization)
    return model


@pytest.mark.parametrize("backwards", [False, True])
def test_tensors_find_their_layers_in_any_order(backwards: bool) -> None:
    given = tensors()
    model = load(list(given.items())[:: -1 if backwards else 1])
    x = torch.randn(3, 4)
    parts = [x @ given[f"{name}.weight"].data.T + given[f"{name}.bias"] for name in "qkv"]  # type: ignore[union-attr, operator]
    torch.testing.assert_close(model.qkv(OPS, x), torch.cat(parts, dim=1))
    assert torch.equal(model.embedding(OPS, torch.tensor([3])), given["embed.weight"].data[3:4])  # type: ignore[union-attr]


def test_missing_tensors_are_named_a_few_of_them() -> None:
    given = tensors()
    del given["k.weight"]
    with pytest.raises(ModelLoadError, match=r"^the checkpoint lacks k\.weight$"):
        load(given)
    with pytest.raises(ModelLoadError, match=r"^the checkpoint lacks embed\.weight, k\.bias, k\.weight and 5 more$"):
        load({})


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ModelLoadError, match=r"holds a tensor that its architecture does not have: q\.zeros"):
        load({**tensors(), "q.zeros": torch.zeros(4)})


def test_a_tensor_that_comes_twice_is_named() -> None:
    given = list(tensors().items())
    with pytest.raises(ModelLoadError, match=r"holds twice norm\.weight"):
        load([*given, ("norm.weight", torch.zeros(4))])


@pytest.mark.parametrize(
    ("name", "tensor", "shapes"),
    [
        ("k.weight", DenseWeight(torch.zeros(3, 4)), r"\[3, 4\], not \[2, 4\]"),
        ("embed.weight", DenseWeight(torch.zeros(4, 10)), r"\[4, 10\], not \[10, 4\]"),
        ("q.bias", torch.zeros(5), r"\[5\], not \[4\]"),
        ("norm.weight", torch.zeros(1, 4), r"\[1, 4\], not \[4\]"),
        ("q.weight", torch.zeros(4), r"\[4\], not \[4, 4\]"),
        ("norm.weight", DenseWeight(torch.zeros(4, 4)), r"\[4, 4\], not \[4\]"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(name: str, tensor: Weight | torch.Tensor, shapes: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"the checkpoint's {name} has shape {shapes}: its config and its weights do not"):
        load({**tensors(), name: tensor})


def damaged(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).index_fill(0, torch.tensor([1]), float("nan"))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("k.weight", DenseWeight(damaged(2, 4))),
        ("k.weight", DenseWeight(torch.full((2, 4), float("-inf")).half())),
        ("k.weight", QuantizedWeight(torch.ones(2, 4, dtype=torch.int8), damaged(2, 1), None, 4, 4, False)),
        ("k.weight", QuantizedWeight(torch.ones(2, 4, dtype=torch.int8), torch.ones(2, 1), damaged(2, 1), 4, 4, False)),
        ("norm.weight", damaged(4)),
    ],
)
def test_a_tensor_with_numbers_that_are_none_is_named(name: str, tensor: Weight | torch.Tensor) -> None:
    with pytest.raises(ModelLoadError, match=rf"the checkpoint's {name} holds numbers that are infinite or none \(NaN\)"):
        load({**tensors(), name: tensor})


def test_what_old_checkpoints_hold_beside_the_weights_is_passed_over() -> None:
    load({**tensors(), "lm_head.weight": torch.zeros(1), "layers.0.rotary_emb.inv_freq": torch.zeros(2)})


def test_quantised_weights_are_dequantised_when_asked() -> None:
    seen: list[type] = []

    class Watching(ReferenceOps):
        def pack_linear(self, weight: Weight, bias: torch.Tensor | None):  # type: ignore[no-untyped-def]
            seen.append(type(weight))
            return super().pack_linear(weight, bias)

    def weights() -> Iterator[tuple[str, Weight | torch.Tensor]]:
        quantised = QuantizedWeight(torch.ones(10, 4, dtype=torch.int8), torch.ones(10, 1), None, 4, 4, False)
        yield from {**tensors(), "embed.weight": quantised}.items()

    for quantization, kind in (("auto", QuantizedWeight), ("none", DenseWeight)):
        seen.clear()
        TinyModel().parameters.load(weights(), Watching(torch.device("cpu"), torch.float32), quantization)
        assert seen == [kind, DenseWeight]


def test_the_shards_of_a_weight_are_its_rows_in_order() -> None:
    weight = DenseWeight(torch.randn(8, 3))
    parts = [Shard(rank, 4).columns(weight).dequantize() for rank in range(4)]
    assert torch.equal(torch.cat(parts), weight.data)
    assert Shard().columns(weight) is weight


def test_a_name_cannot_be_expected_twice() -> None:
    parameters = Parameters()
    parameters.expect("a", lambda ops, weight: None)
    with pytest.raises(AssertionError, match="a is expected twice"):
        parameters.expect("a", lambda ops, weight: None)

from __future__ import annotations

import pytest
import torch

from engine.packed_inputs import PackedInputs

SHAPES = {"counts": ((3,), torch.int32), "words": ((5, 2), torch.int64), "table": ((4, 3), torch.int32)}


@pytest.mark.parametrize("copies", [False, True])
def test_what_was_filled_is_found_at_the_same_addresses_after_every_send(copies: bool) -> None:
    inputs = PackedInputs(SHAPES, torch.device("cpu"), copies=copies)
    addresses = {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()}
    assert all(address % 16 == 0 for address in addresses.values())
    for step in (1, 2, 3):
        arrays = inputs.arrays()
        for name, array in arrays.items():
            assert array.shape == SHAPES[name][0]
            array[...] = 10 * step
        inputs.send("table", 4)
        assert all((tensor == 10 * step).all() for tensor in inputs.tensors.values())
    assert {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()} == addresses


def test_rows_behind_those_that_are_sent_stay_as_they_were() -> None:
    inputs = PackedInputs(SHAPES, torch.device("cpu"), copies=True)
    inputs.arrays()["table"][...] = 7
    inputs.send("table", 2)
    assert inputs.tensors["table"].tolist() == [[7] * 3] * 2 + [[0] * 3] * 2


def test_what_may_still_be_read_by_a_copy_is_not_what_is_filled_next() -> None:
    inputs = PackedInputs(SHAPES, torch.device("cpu"), copies=True)
    first = inputs.arrays()["counts"]
    inputs.send("table", 4)
    second = inputs.arrays()["counts"]
    inputs.send("table", 4)
    assert first.ctypes.data != second.ctypes.data
    assert inputs.arrays()["counts"].ctypes.data == first.ctypes.data

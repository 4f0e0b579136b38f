"""Swaps through the buffer, by the Triton kernel (interpreted where there is no GPU) and in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import triton
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.staging import Staging
from kernels.ops import Ops
from kernels.reference import ReferenceOps
from kernels.triton import TritonOps

DEVICE = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")
SETS: list[Ops] = [TritonOps(DEVICE, torch.float32), ReferenceOps(DEVICE, torch.float32)]
BLOCK_BYTES = 2 * 3 * 4 * 60  # no power of two, as with the scales of a cache of int8
NUM_BLOCKS, NUM_HOST_BLOCKS = 9, 7


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(device, host) blocks, none twice on either side."""
    count = draw(st.integers(0, NUM_HOST_BLOCKS))
    return list(zip(draw(st.permutations(range(NUM_BLOCKS)))[:count], draw(st.permutations(range(NUM_HOST_BLOCKS)))[:count], strict=True))


def staging(ops: Ops, blocks: torch.Tensor, host: torch.Tensor, num_rows: int) -> Staging:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.staging._BUFFER_BYTES", num_rows * BLOCK_BYTES)
        return Staging(blocks, host, ops)


def random_bytes(num_blocks: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (num_blocks, BLOCK_BYTES), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


@pytest.mark.parametrize("ops", SETS, ids=lambda ops: ops.name)
@settings(max_examples=25)
@given(pairs(), pairs(), st.integers(1, NUM_HOST_BLOCKS), st.integers(0, 1000))
@example([(8 - i, i) for i in range(7)], [(i, 6 - i) for i in range(7)], 3, 0)  # larger than the buffer, in and against the hosts' order
def test_blocks_cross_bit_for_bit_and_no_others_change(
    ops: Ops, outs: list[tuple[int, int]], ins: list[tuple[int, int]], num_rows: int, seed: int
) -> None:
    blocks, host = random_bytes(NUM_BLOCKS, seed).to(DEVICE), random_bytes(NUM_HOST_BLOCKS, seed + 1)
    host = host.pin_memory() if DEVICE.type == "cuda" else host
    expected_blocks, expected_host = blocks.clone().cpu(), host.clone()
    copies = staging(ops, blocks, host, num_rows)
    calls: list[None] = []
    copies.copy_out(outs, lambda: calls.append(None))
    copies.copy_in([(host_block, block) for block, host_block in ins])
    for block, host_block in outs:
        expected_host[host_block] = expected_blocks[block]
    for block, host_block in ins:
        expected_blocks[block] = expected_host[host_block]
    assert torch.equal(blocks.cpu(), expected_blocks)
    assert torch.equal(host, expected_host)
    assert len(calls) == -(-len(outs) // num_rows)


def test_what_has_been_gathered_may_be_filled_anew() -> None:
    blocks, host = random_bytes(4, 0).to(DEVICE), torch.zeros(4, BLOCK_BYTES, dtype=torch.uint8)
    before = blocks.clone().cpu()

    def fill_anew() -> None:
        blocks.zero_()

    staging(SETS[0], blocks, host, 4).copy_out([(0, 3), (2, 1)], fill_anew)
    assert torch.equal(host[[3, 1]], before[[0, 2]])


def test_a_host_block_may_come_back_to_several_places() -> None:
    blocks, host = torch.zeros(4, BLOCK_BYTES, dtype=torch.uint8, device=DEVICE), random_bytes(2, 0)
    staging(SETS[0], blocks, host, 4).copy_in([(1, 0), (0, 2), (1, 3)])
    assert torch.equal(blocks.cpu()[[0, 2, 3]], host[[1, 0, 1]])


def test_neighbours_in_host_memory_cross_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, host = random_bytes(6, 0).to(DEVICE), torch.zeros(6, BLOCK_BYTES, dtype=torch.uint8)
    copies = staging(SETS[1], blocks, host, 6)
    sizes = []
    copy_ = torch.Tensor.copy_

    def counted(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        sizes.append(len(target))
        return copy_(target, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    copies.copy_out([(5, 1), (0, 4), (3, 2), (1, 0)], lambda: None)
    assert sizes == [3, 1]

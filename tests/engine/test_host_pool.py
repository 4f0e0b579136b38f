from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.host_pool import HostPool, new_host_pool, plan_num_host_blocks
from kernels.ops import Ops
from kernels.reference import ReferenceOps
from kernels.triton import TritonOps

CPU = torch.device("cpu")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]  # the same promises wherever they can be tried


def new_pool(num_blocks: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(num_blocks, 3, 2, 2, 16, 8, device=device).to(dtype)


def ops_for(device: str) -> Ops:
    return TritonOps(torch.device(device), torch.float32) if device == "cuda" else ReferenceOps(CPU, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_come_back_bit_for_bit_after_theirs_were_filled_anew(device: str, dtype: torch.dtype) -> None:
    pool = new_pool(6, device, dtype)
    before = pool.clone()
    host = new_host_pool(pool, 4, ops_for(device))
    host.swap([(5, 0), (1, 3)], [])
    pool.zero_()
    host.swap([], [(3, 1), (0, 2)])
    assert torch.equal(pool[[1, 2]], before[[1, 5]])
    assert not pool[[0, 3, 4, 5]].any()


@pytest.mark.parametrize("device", DEVICES)
def test_what_leaves_goes_before_what_arrives_in_its_place(device: str) -> None:
    pool = new_pool(3, device)
    before = pool.clone()
    host = new_host_pool(pool, 2, ops_for(device))
    host.swap([(0, 0)], [])
    host.swap([(1, 1)], [(0, 1), (1, 2)])
    assert torch.equal(pool, before[[0, 0, 1]])


@pytest.mark.parametrize("device", DEVICES)
def test_swaps_larger_than_the_staging_buffer_lose_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.staging._BUFFER_BYTES", 1 << 15)
    pool = new_pool(40, device)
    before = pool.clone()
    host = new_host_pool(pool, 40, ops_for(device))
    host.swap([(i, 39 - i) for i in range(40)], [])
    pool.zero_()
    host.swap([], [(i, i) for i in range(40)])
    assert torch.equal(pool, before.flip(0))


@pytest.mark.parametrize("device", DEVICES)
def test_the_time_of_all_copies_is_reported_once(device: str) -> None:
    host = new_host_pool(new_pool(4, device), 4, ops_for(device))
    assert host.take_timing() == (0.0, 0)
    host.swap([(0, 0), (1, 1)], [(0, 2)])
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, num_blocks = host.take_timing()
    assert seconds > 0
    assert num_blocks == 3
    assert host.take_timing() == (0.0, 0)


def test_a_copy_to_a_block_that_does_not_exist_raises() -> None:
    with pytest.raises(IndexError):
        HostPool(new_pool(2), 1).swap([(0, 1)], [])


def test_swap_space_gets_the_whole_blocks_that_fit() -> None:
    assert plan_num_host_blocks(EngineConfig(swap_space=10_999), 1000, CPU) == 10
    assert plan_num_host_blocks(EngineConfig(swap_space=0), 1000, CPU) == 0


def test_by_default_there_is_swap_space_on_cuda_only_as_a_pool_on_the_cpu_is_in_host_memory_itself() -> None:
    assert plan_num_host_blocks(EngineConfig(), 1 << 20, CPU) == 0
    assert 0 < plan_num_host_blocks(EngineConfig(), 1 << 20, torch.device("cuda")) <= 4096


def test_swapping_without_room_for_it_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="set --swap-space"):
        plan_num_host_blocks(EngineConfig(preemption_mode="swap"), 1000, CPU)
    with pytest.raises(ConfigError, match="holds not one KV block: raise --swap-space to at least 1000"):
        plan_num_host_blocks(EngineConfig(swap_space=999), 1000, CPU)
    with pytest.raises(ConfigError, match="larger than the memory that this process may have"):
        plan_num_host_blocks(EngineConfig(swap_space=1 << 60), 1000, CPU)

from __future__ import annotations

import re

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache_engine import CacheEngine, bytes_per_block, plan_num_blocks
from engine.config import EngineConfig, parse_bytes
from engine.errors import ConfigError
from kernels.batch import AttentionShape
from kernels.kv_cache import decode_rows, encode_rows
from kernels.reference import ReferenceOps

CPU = torch.device("cpu")
SHAPES = [AttentionShape(num_heads=4, num_kv_heads=2, head_size=8, scale=1.0)] * 3


def test_a_block_takes_keys_and_values_of_all_layers() -> None:
    assert bytes_per_block(SHAPES, 16, torch.float32) == 3 * 2 * 2 * 16 * 8 * 4
    assert bytes_per_block(SHAPES, 16, torch.bfloat16) == 3 * 2 * 2 * 16 * 8 * 2
    assert bytes_per_block(SHAPES, 16, torch.int8) == 3 * 2 * 2 * 16 * (8 + 4)  # codes, and a scale of four bytes


def test_layers_of_different_heads_are_refused() -> None:
    other = AttentionShape(num_heads=4, num_kv_heads=4, head_size=8, scale=1.0)
    with pytest.raises(ConfigError, match="different KV heads"):
        bytes_per_block([*SHAPES, other], 16, torch.float32)


def test_the_pool_gets_the_whole_blocks_that_fit_the_memory() -> None:
    assert plan_num_blocks(EngineConfig(kv_cache_memory=10_999), 1000, 100, CPU) == 10


def test_by_default_the_pool_on_a_cpu_is_at_most_four_gibibytes() -> None:
    assert 0 < plan_num_blocks(EngineConfig(), 1 << 20, 16, CPU) <= 4096


@given(
    memory=st.integers(1, 1 << 27),
    block_bytes=st.integers(1, 1 << 22),
    max_model_len=st.integers(1, 5000),
    block_size=st.sampled_from([1, 16, 32]),
)
def test_a_pool_too_small_for_one_sequence_is_refused_and_both_remedies_work(
    memory: int, block_bytes: int, max_model_len: int, block_size: int
) -> None:
    config = EngineConfig(kv_cache_memory=memory, block_size=block_size)
    num_needed = -(-max_model_len // block_size)
    if memory // block_bytes >= num_needed:
        assert plan_num_blocks(config, block_bytes, max_model_len, CPU) == memory // block_bytes
        return
    with pytest.raises(ConfigError, match=f"holds {memory // block_bytes * block_size} tokens, .*max_model_len {max_model_len}") as refusal:
        plan_num_blocks(config, block_bytes, max_model_len, CPU)
    more = re.search(r"raise --kv-cache-memory to at least (\w+)", str(refusal.value))
    assert more is not None
    enough = EngineConfig(kv_cache_memory=parse_bytes(more[1]), block_size=block_size)
    assert plan_num_blocks(enough, block_bytes, max_model_len, CPU) >= num_needed
    shorter = re.search(r"lower --max-model-len to (\d+)", str(refusal.value))
    assert (shorter is None) == (memory < block_bytes)
    if shorter is not None:
        assert plan_num_blocks(config, block_bytes, int(shorter[1]), CPU) == memory // block_bytes


def test_a_number_of_blocks_that_is_too_small_is_answered_with_one_that_is_not() -> None:
    with pytest.raises(ConfigError, match="raise --num-gpu-blocks-override to at least 7 or lower --max-model-len to 48"):
        plan_num_blocks(EngineConfig(num_gpu_blocks_override=3), 1 << 20, 100, CPU)
    assert plan_num_blocks(EngineConfig(num_gpu_blocks_override=7), 1 << 20, 100, CPU) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_caches_of_the_layers_are_views_of_one_pool_and_zero_at_first(dtype: torch.dtype) -> None:
    cache = CacheEngine(SHAPES, 5, 16, dtype, ReferenceOps(CPU, torch.float32))
    assert len(cache.kv_caches) == 3
    for layer, kv_cache in enumerate(cache.kv_caches):
        assert kv_cache.shape == (5, 2, 2, 16, 8)
        assert kv_cache.dtype == dtype
        assert not kv_cache.any()
        kv_cache[2] = layer + 1
    assert cache.pool[2].float().mean(dim=(1, 2, 3, 4)).tolist() == [1.0, 2.0, 3.0]
    assert not cache.pool[[0, 1, 3, 4]].any()
    assert cache.pool[2].is_contiguous()


def test_the_scales_of_int8_rows_are_part_of_the_pool_and_go_where_their_blocks_go() -> None:
    ops = ReferenceOps(CPU, torch.float32)
    cache = CacheEngine(SHAPES, 4, 16, torch.int8, ops, num_host_blocks=1)
    assert cache.pool.numel() == 4 * bytes_per_block(SHAPES, 16, torch.int8)
    values = torch.randn(3, 2, 2, 16, 8)
    cache.pool[0] = encode_rows(values, torch.int8)
    cache.copy([(0, 2)])
    cache.swap([(2, 0)], [(0, 3)])
    for block in (2, 3):
        assert (decode_rows(cache.pool[block], 8) - values).abs().max() < values.abs().max() / 60


def test_copying_a_block_copies_it_in_all_layers() -> None:
    cache = CacheEngine(SHAPES, 4, 16, torch.float32, ReferenceOps(CPU, torch.float32))
    cache.pool.normal_()
    before = cache.pool.clone()
    cache.copy([(0, 3), (1, 2)])
    assert torch.equal(cache.pool, before[[0, 1, 1, 0]])
    cache.copy([])
    assert torch.equal(cache.pool, before[[0, 1, 1, 0]])


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_copies_of_blocks_have_the_result_of_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    cache = CacheEngine(SHAPES, 5, 2, torch.float32, ReferenceOps(CPU, torch.float32))
    cache.pool[:] = torch.arange(5.0).view(5, 1, 1, 1, 1, 1)
    expected = list(range(5))
    for source, destination in pairs:
        expected[destination] = expected[source]
    cache.copy(pairs)
    assert cache.pool.flatten(1).unique(dim=1).flatten().tolist() == expected


def test_a_pool_larger_than_the_machines_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than the memory that this process may have"):
        plan_num_blocks(EngineConfig(kv_cache_memory=1 << 50), 1 << 20, 128, torch.device("cpu"))


def test_memory_that_is_given_back_is_zero_again_where_it_was() -> None:
    cache = CacheEngine(SHAPES, 2000, 16, torch.float32, ReferenceOps(CPU, torch.float32))
    cache.pool.fill_(1.0)
    views = [one.data_ptr() for one in cache.kv_caches]
    process = psutil.Process()
    before = process.memory_info().rss
    cache.free()
    assert process.memory_info().rss < before - cache.pool.nbytes // 2
    cache.restore()
    assert cache.pool[10:1990].sum() == 0  # the first and the last page are not whole
    cache.kv_caches[1][1000].fill_(2.0)
    assert cache.pool[10:1990].sum() == 2.0 * cache.kv_caches[1][1000].numel()
    assert [one.data_ptr() for one in cache.kv_caches] == views

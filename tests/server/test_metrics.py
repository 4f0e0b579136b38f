from __future__ import annotations

import pytest

from engine.stats import EngineStats
from server.observability.metrics import Metrics


def samples(stats: EngineStats) -> dict[str, float]:
    """Every line of the exposition, by its name and labels."""
    lines = Metrics(lambda: stats).render().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_the_pool_shows_how_full_it_is_how_much_of_that_is_wasted_and_how_much_is_shared() -> None:
    found = samples(
        EngineStats(
            blocks_total=10, blocks_referenced=4, blocks_cached=5, blocks_free=1, shared_references=3, table_slots=112, unused_slots=14
        )
    )
    assert found["octavo_kv_cache_usage_ratio"] == 0.4
    assert found["octavo_kv_cache_fragmentation_ratio"] == 0.125
    assert found["octavo_kv_cache_shared_references"] == 3
    assert [found[f'octavo_kv_blocks{{state="{state}"}}'] for state in ("referenced", "cached", "free")] == [4, 5, 1]


def test_hits_are_told_by_tier() -> None:
    found = samples(EngineStats(prompt_tokens_total=200, prefix_cache_hits_total=50, prefix_cache_host_hits_total=30))
    assert found["octavo_prefix_cache_hit_ratio"] == 0.25
    assert found["octavo_prefix_cache_hits_total"] == 50
    assert found["octavo_prefix_cache_host_hits_total"] == 30


def test_preemptions_are_told_by_mode_and_copies_by_direction() -> None:
    found = samples(
        EngineStats(
            num_swapped=2,
            preemptions_total=9,
            preemptions_swap_total=6,
            host_blocks_total=20,
            host_blocks_held=8,
            host_blocks_cached=5,
            swap_out_copies_total=6,
            swap_out_blocks_total=40,
            swap_in_copies_total=4,
            swap_in_blocks_total=30,
            swap_seconds_total=1.5,
            host_evictions_total=7,
        )
    )
    assert found["octavo_sequences_swapped"] == 2
    assert (found['octavo_preemptions_total{mode="swap"}'], found['octavo_preemptions_total{mode="recompute"}']) == (6, 3)
    assert [found[f'octavo_host_kv_blocks{{state="{state}"}}'] for state in ("held", "cached", "free")] == [8, 5, 7]
    assert (found['octavo_swap_copies_total{direction="out"}'], found['octavo_swap_blocks_total{direction="out"}']) == (6, 40)
    assert (found['octavo_swap_copies_total{direction="in"}'], found['octavo_swap_blocks_total{direction="in"}']) == (4, 30)
    assert found["octavo_swap_seconds_total"] == 1.5
    assert found["octavo_host_cache_evictions_total"] == 7


@pytest.mark.parametrize("name", ["octavo_kv_cache_usage_ratio", "octavo_kv_cache_fragmentation_ratio", "octavo_prefix_cache_hit_ratio"])
def test_before_anything_has_happened_shares_are_zero(name: str) -> None:
    assert samples(EngineStats())[name] == 0

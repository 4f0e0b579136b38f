"""The measurements of the engine without a model: that they keep up with the engine."""

from __future__ import annotations

from engine.loader.resolve import resolve_model
from loadtest.host_cost import measure, new_core
from loadtest.memory_figures import occupancy


def test_a_pool_under_more_requests_than_it_holds_is_nearly_full() -> None:
    found = occupancy(resolve_model(None).config(), num_blocks=2000, block_size=16, num_steps=100)
    assert found.num_running > 10
    assert 0 < found.unused <= found.most_unused < 0.5


def test_the_parts_of_a_step_without_a_model_come_to_the_whole_step() -> None:
    total, *parts = measure(new_core(num_running=4, num_waiting=2, context=20, policy="priority"), 10)
    assert all(part > 0 for part in parts)
    assert abs(total - sum(parts)) < 1e-6

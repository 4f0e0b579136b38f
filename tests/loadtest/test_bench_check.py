"""The guard against regressions: what it calls slower."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench_check import UNITS, lost, machine_kind
from loadtest.calibration import CALIBRATIONS

ratios = st.fixed_dictionaries({name: st.floats(0.01, 1e4) for name in UNITS})


@given(ratios, st.floats(0.0, 0.5))
def test_what_is_as_recorded_or_faster_is_never_called_slower(recorded: dict[str, float], tolerance: float) -> None:
    assert not lost(recorded, recorded, tolerance)
    assert not lost(recorded, {name: 1.01 * ratio for name, ratio in recorded.items()}, tolerance)


@given(ratios, st.sampled_from(list(UNITS)), st.floats(0.01, 0.5))
def test_what_lost_more_than_the_tolerance_is_named_and_nothing_else(recorded: dict[str, float], name: str, tolerance: float) -> None:
    assert lost(recorded, recorded | {name: 0.99 * (1 - tolerance) * recorded[name]}, tolerance) == [name]
    assert not lost(recorded, recorded | {name: 1.001 * (1 - tolerance) * recorded[name]}, tolerance)


def test_every_unit_is_one_that_the_calibration_gives() -> None:
    assert set(UNITS.values()) <= set(CALIBRATIONS)
    assert all(calibrate() > 0 for calibrate in CALIBRATIONS.values())


def test_the_kind_of_machine_is_a_file_name_without_surprises() -> None:
    assert machine_kind().replace("-", "").isalnum()

from __future__ import annotations

import re

import pytest
from simulate import simulate

from engine.block_manager import BlockManager


def test_a_long_simulation_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(6000, first_seed=7)
    printed = capsys.readouterr().out
    assert printed.startswith("seed 7\n")
    counts = {name: int(count.replace(",", "")) for count, name in re.findall(r"^ *([\d,]+) (.+)$", printed, re.MULTILINE)}
    assert 6000 <= counts["steps"] < counts["times that all invariants were checked"]
    for name in ("preemptions", "of these, swaps", "blocks copied on write", "cached blocks evicted", "of these, beams"):
        assert counts[name] > 0, name


def test_a_lost_reference_is_found_and_the_seed_that_is_printed_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = BlockManager._dereference
    monkeypatch.setattr(BlockManager, "_dereference", lambda self, block: right(self, block) if block.ref_count != 4 else None)
    assert not simulate(1_000_000, first_seed=0)
    place = re.compile(r"in step \d+ of the run with seed (\d+) .*\nto see it again: .* --seed (\d+) --steps 1")
    first = place.search(capsys.readouterr().out)
    assert first is not None
    assert first[1] == first[2]
    assert not simulate(1, int(first[2]))
    again = place.search(capsys.readouterr().out)
    assert again is not None
    assert again[0] == first[0]

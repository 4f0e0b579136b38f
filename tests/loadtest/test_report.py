"""Figures in the documentation are those of the files that the benchmarks wrote."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from loadtest.charts import CHARTS, draw, html_page
from loadtest.compare_streams import MEDIAN, RATE, READY, WORST
from loadtest.growth import PARTS, Counts
from loadtest.report import PAGES, PLACE, TABLES, figures_in_rows, fill

PAGE = "before\n<!-- figures: a -->\nold\n<!-- end -->\nbetween\n<!-- figures: b -->\n| kept |\n<!-- end -->\n"


def test_measured_figures_take_their_place_and_all_else_stays() -> None:
    filled = fill(PAGE, {"a": "| new |\n", "c": "| nowhere |\n"})
    assert filled == PAGE.replace("old\n", "| new |\n")
    assert fill(filled, {"a": "| new |\n"}) == filled
    assert fill(PAGE, {}) == PAGE


def test_every_place_in_the_documentation_has_figures() -> None:
    places = [name for page in PAGES for _, name, _ in PLACE.findall(page.read_text())]
    assert set(places) == {*TABLES, *(f"{name}-chart" for name in CHARTS)}


def test_a_chart_and_its_table_are_a_page_that_asks_for_no_other_file(tmp_path: Path) -> None:
    row = {READY: 2.0, **{name.format(count): float(count) for count in (1, 32) for name in (RATE, MEDIAN, WORST)}}
    figures = {"Octavo": row, "llama-server": row, "Octavo / llama-server": {RATE.format(32): 1.0}}
    page = html_page({"streams": draw("streams", figures, tmp_path)}, {"streams": figures_in_rows(figures)})
    assert (tmp_path / "streams.png").stat().st_size > 1000
    assert "<tr><td>32 at once: tokens/s</td><td>32</td><td>32</td><td>1</td></tr>" in page
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|@import""", page)


@given(st.floats(0.1, 10), st.integers(1, 1000), st.integers(1, 128), st.floats(0, 1))
def test_the_parts_of_a_step_come_to_the_time_that_they_took(seconds: float, steps: int, sequences: int, share: float) -> None:
    before = Counts(5.0, 10.0, 100.0, dict.fromkeys(PARTS, 1.0))
    after = Counts(5.0 + seconds, 10.0 + steps, 100.0 + steps * sequences, dict.fromkeys(PARTS, 1.0 + share * seconds / len(PARTS)))
    rate, step_ms, parts = before.until(after)
    assert abs(rate * step_ms / 1e3 - sequences) < 1e-6 * sequences
    assert abs(sum(parts.values()) - share * step_ms) < 1e-6 * step_ms

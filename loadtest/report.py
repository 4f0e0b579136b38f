"""Draws the charts and fills in the tables of the documentation from figures that the commands here have written with --json.

    python -m loadtest.report        (or `make figures`)

Reads docs/benchmarks/*.json; writes a PNG for each chart, docs/benchmarks/index.html with all of them in one file that asks for no other,
and the tables and charts between `<!-- figures: NAME -->` and `<!-- end -->` in README.md and docs/benchmarks.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from loadtest.charts import CHARTS, draw, html_page
from loadtest.compare_streams import shown

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "benchmarks"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
PLACE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    figures = {path.stem: json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}
    tables = {name: table(*(figures[one] for one in sources)) for name, (table, *sources) in TABLES.items() if figures.keys() >= {*sources}}
    drawn = {name: draw(name, figures[name], FIGURES) for name in CHARTS if name in figures}
    tables |= {f"{name}-chart": f"![{title}](benchmarks/{name}.png)\n" for name, (title, _) in drawn.items()}
    (FIGURES / "index.html").write_text(html_page(drawn, tables))
    for page in PAGES:
        page.write_text(fill(page.read_text(), tables))


def fill(text: str, tables: dict[str, str]) -> str:
    """The text with each table in its place; a place whose figures nobody has measured stays as it is."""
    return PLACE.sub(lambda found: found[1] + tables.get(found[2], found[0][len(found[1]) : -len(found[3])]) + found[3], text)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def compare_table(figures: dict[str, dict[str, float]]) -> str:
    cases = list(figures["Octavo"])
    rows = []
    for name, row in figures.items():
        rows.append([name, *(f"{row[case]:.1f}" if "/" in name else f"{row[case]:.0f}" for case in cases)])
    return markdown(["tokens/s, all sequences", *(case.replace("prefill 512", "prompt of 512") for case in cases)], rows)


def bench_table(figures: dict[str, dict[str, float]]) -> str:
    columns = [column for column in figures[next(iter(figures))] if column.isdigit()]
    rows = [[name, *(shown(row[column]) for column in columns)] for name, row in figures.items() if columns[0] in row]
    in_process, over_http = (figures[row] for row in ("in-process, tokens/s", "over HTTP, tokens/s"))
    rows.insert(2, ["HTTP / in-process", *(f"{over_http[column] / in_process[column]:.0%}" for column in columns)])
    others = {name: value for row in figures.values() for name, value in row.items() if name not in columns}
    others["prompt of 512 tokens, tokens/s"] = others.pop("prefill 512")
    return markdown(["sequences", *columns], rows) + "\n" + ", ".join(f"{name}: {shown(value)}" for name, value in others.items()) + ".\n"


def bench_in_words(figures: dict[str, dict[str, float]]) -> str:
    rates = [f"{figures[row]['32']:.0f}" for row in ("over HTTP, tokens/s", "in-process, tokens/s")]
    alone, crowd = (f"{figures['first token, ms'][count]:.0f}" for count in ("1", "32"))
    ready = figures["server"]["start to ready, s"]
    return (
        f"Over HTTP, streaming (`make bench`): {rates[0]} tokens/s with 32 streams, against {rates[1]} in process in the same run.\n"
        f"The first token comes after {alone} ms at the median for one request on an idle server, and after {crowd} ms when 32\n"
        f"arrive at once. From the command to `/ready`: {ready:.1f} s warm.\n"
    )


def http_table(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    of_octavo = next(iter(figures.values()))
    rows = []
    for rate in of_octavo:
        for name, by_rate in figures.items():
            found = by_rate[rate]
            times = [f"{found[f'whole answer {p}'] / 1e3:.2f}" for p in ("p50", "p99")]
            rows.append([rate, name, f"{found['requests/s']:.2f}", *times, f"{found.get('goodput, requests/s', 0.0):.2f}"])
    tail = f"P99 of {min(found['requests'] for found in of_octavo.values()):.0f}, s"
    return markdown(["requests arriving a second", "", "answered a second", "median, s", tail, "within 5 s, a second"], rows)


def figures_in_rows(figures: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    return markdown(
        ["", *figures], [[name, *(shown(found[name]) if name in found else "" for found in figures.values())] for name in names]
    )


def growth_table(points: list[dict[str, Any]]) -> str:
    rows = []
    for point in points:
        parts = point["parts_ms"]
        cells = [f"{point['tokens_per_second']:.0f}", f"{point['first_tokens']:.2f}", f"{point['step_ms']:.2f}"]
        rows.append([str(point["sequences"]), str(point["context"]), *cells, *(f"{value:.2f}" for value in parts.values())])
    return markdown(["sequences", "context", "tokens/s", "prompts computed, s", "step, ms", *points[0]["parts_ms"]], rows)


# Ratios to llama.cpp: the goal, and the least that passes.
RATIO_GOALS = {"1": (2.0, 1.6), "8": (3.2, 2.6), "16": (4.2, 3.5), "32": (4.4, 3.7), "64": (4.8, 4.0), "prefill 512": (4.0, 3.2)}


def goals_table(compare: dict[str, dict[str, float]], bench: dict[str, dict[str, float]], memory: dict[str, int]) -> str:
    reached = compare["Octavo / llama.cpp"]
    rows = []
    for case, (goal, least) in RATIO_GOALS.items():
        name = "prompt of 512 tokens" if case == "prefill 512" else f"{case} sequences" if case != "1" else "1 sequence"
        verdict = "yes" if reached[case] >= goal else "passes" if reached[case] >= least else "no"
        rows.append([f"{name}, ratio to llama.cpp", f"{goal} (at least {least})", f"{reached[case]:.2f}", verdict])
    first_token, server = bench["first token, ms"], bench["server"]
    share = bench["over HTTP, tokens/s"]["32"] / bench["in-process, tokens/s"]["32"]
    for name, most, found in (
        ("first token alone, ms", 50, first_token["1"]),
        ("first token, 32 at once, ms", 1000, first_token["32"]),
        ("start to ready, s", 2, server["start to ready, s"]),
        ("API process, us of processor time a token, 32 streams", 100, bench["API process, us/token"]["32"]),
        ("memory, ratio to llama.cpp", 1.5, memory["Octavo"] / memory["llama.cpp"]),
    ):
        rows.append([name, f"at most {most}", shown(found), "yes" if found <= most else "no"])
    rows.append(["HTTP, share of the in-process rate, 32 streams", "90%", f"{share:.0%}", "yes" if share >= 0.9 else "no"])
    return markdown(["", "goal", "measured", "reached"], rows)


TABLES: dict[str, tuple[Any, ...]] = {  # by place: what writes the table, and the files that it is written from
    "compare": (compare_table, "compare"),
    "goals": (goals_table, "compare", "bench", "memory"),
    "bench": (bench_table, "bench"),
    "bench-in-words": (bench_in_words, "bench"),
    "streams": (figures_in_rows, "streams"),
    "http": (http_table, "http"),
    "load": (figures_in_rows, "load"),
    "growth": (growth_table, "growth"),
}


if __name__ == "__main__":
    main()

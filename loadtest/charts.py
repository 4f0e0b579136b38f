"""Charts of measured figures, with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.compare_streams import MEDIAN, RATE, WORST

try:
    import matplotlib
except ModuleNotFoundError as error:
    raise SystemExit("charts are drawn with matplotlib, which `make figures` installs") from error

matplotlib.use("Agg")
matplotlib.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.handlelength": 3.5,
    "hatch.color": "white",
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.axis import Axis  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FormatStrFormatter, NullFormatter, NullLocator  # noqa: E402

# Colours differ in lightness, and hatching, marks and dashes besides: told apart without colour too.
STYLES = {  # of a side: colour, hatching, mark, dashes
    "Octavo": ("#12355b", "", "o", "-"),
    "llama.cpp": ("#d9772b", "////", "s", "--"),
    "llama-server": ("#d9772b", "////", "s", "--"),
    "vLLM": ("#5fa08e", "\\\\\\\\", "^", "-."),
    "FastAPI + transformers": ("#9c948a", "xx", "D", ":"),
}
PARTS = {"scheduler": ("#d9772b", "////"), "model": ("#d8d3c8", ""), "sampler": ("#5fa08e", "\\\\\\\\"), "output": ("#12355b", "")}

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Octavo: benchmarks</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse; font-size: 0.85rem; margin: 1rem 0 }}
th, td {{ padding: 0.1rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd }}
</style>
<h1>Octavo: benchmarks</h1>
<p>How each figure is measured: docs/benchmarks.md.</p>
{charts}
</html>
"""


def draw(name: str, figures: Any, directory: Path) -> tuple[str, str]:
    """Writes NAME.png there; returns the chart's title and itself as SVG."""
    title, plot = CHARTS[name]
    figure = plot(figures)
    figure.savefig(directory / f"{name}.png", dpi=110, metadata={"Software": None})
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    drawing = svg.getvalue()[svg.getvalue().index("<svg") :]
    return title, drawing.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def html_page(drawn: dict[str, tuple[str, str]], tables: dict[str, str]) -> str:
    """All charts, each with its table, which is Markdown."""
    parts = [f"<h2>{title}</h2>\n{svg}{html_table(tables.get(name, ''))}" for name, (title, svg) in drawn.items()]
    return PAGE.format(charts="\n".join(parts))


def html_table(markdown: str) -> str:
    rows = [line.strip("|").split("|") for line in markdown.splitlines() if not line.startswith("| ---")]
    cells = [[f"<{tag}>{cell.strip()}</{tag}>" for cell in row] for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)]
    return "<table>\n" + "".join(f"<tr>{''.join(row)}</tr>\n" for row in cells) + "</table>" if rows else ""


def compare(figures: dict[str, dict[str, float]]) -> Figure:
    figure, (decode, prompt) = pyplot.subplots(1, 2, figsize=(8, 3.6), width_ratios=(5, 1.4))
    sides = {name: row for name, row in figures.items() if "/" not in name}
    counts = [case for case in figures["Octavo"] if case.isdigit()]
    _bars(decode, counts, {name: [row[count] for count in counts] for name, row in sides.items()})
    _bars(prompt, ["512 tokens"], {name: [row["prefill 512"]] for name, row in sides.items()})
    decode.set(xlabel="sequences at once", ylabel="tokens per second, of all sequences", title="decoding")
    prompt.set(xlabel="length of the prompt", ylabel="tokens per second", title="one prompt")
    decode.legend()
    return figure


def streams(figures: dict[str, dict[str, float]]) -> Figure:
    figure, (rate, first) = pyplot.subplots(1, 2, figsize=(8, 3.4), width_ratios=(3, 2))
    sides = {name: row for name, row in figures.items() if "/" not in name}
    counts = [figure.partition(" ")[0] for figure in figures["Octavo"] if figure.endswith("tokens/s")]
    most = counts[-1]
    _bars(rate, counts, {name: [row[RATE.format(count)] for count in counts] for name, row in sides.items()})
    waits = {"median": MEDIAN, "worst": WORST}
    _bars(first, list(waits), {name: [row[wait.format(most)] for wait in waits.values()] for name, row in sides.items()}, "%.2f")
    rate.set(xlabel="streams at once", ylabel="tokens per second, of all streams", title="throughput")
    first.set(xlabel="of the streams", ylabel="seconds to the first token", title=f"{most} requests at once")
    figure.legend(*rate.get_legend_handles_labels(), loc="outside upper center", ncols=len(sides))
    return figure


def _bars(axes: Axes, groups: Sequence[str], sides: dict[str, list[float]], number: str = "%.0f") -> None:
    """A group of bars for each name in `groups`, with a bar for each side."""
    width = 0.8 / len(sides)
    for i, (name, values) in enumerate(sides.items()):
        color, hatch, _, _ = STYLES[name]
        bars = axes.bar([x + i * width for x in range(len(groups))], values, width, label=name, color=color, hatch=hatch)
        axes.bar_label(bars, fmt=number, fontsize=7)
    axes.set_xticks([x + width * (len(sides) - 1) / 2 for x in range(len(groups))], groups)


def http(figures: dict[str, dict[str, dict[str, float]]]) -> Figure:
    figure, (answered, latency) = pyplot.subplots(1, 2, figsize=(8, 3.6))
    for name, by_rate in figures.items():
        rates = [float(rate) for rate in by_rate]
        style = dict(zip(("color", "marker", "linestyle"), (STYLES[name][i] for i in (0, 2, 3)), strict=True))
        answered.plot(rates, [found["requests/s"] for found in by_rate.values()], label=name, **style)
        latency.plot(rates, [found["whole answer p99"] / 1e3 for found in by_rate.values()], **style)
    answered.set(ylabel="requests answered a second")
    latency.set(ylabel="P99 of the whole answer, s")
    for axes in (answered, latency):
        axes.set(xlabel="requests arriving a second", xscale="log", yscale="log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.xaxis.set_minor_formatter(NullFormatter())
        _plain(axes.yaxis)
    figure.legend(loc="outside upper center", ncols=len(figures))
    return figure


def growth(points: list[dict[str, Any]]) -> Figure:
    figure, axes = pyplot.subplots(2, 2, figsize=(8, 6.8))
    shortest = min(point["context"] for point in points)
    by_sequences = [point for point in points if point["context"] == shortest]
    by_context = [point for point in points if point["sequences"] == 1]
    _line(axes[0][0], by_sequences, "sequences", "o-")
    _line(axes[0][1], [point for point in points if point["sequences"] == 8], "context", "s--", "8 sequences")
    _line(axes[0][1], by_context, "context", "o-", "1 sequence")
    axes[0][0].set(title=f"{shortest} tokens of context each", xlabel="sequences at once")
    axes[0][1].set(title="one sequence and eight", xlabel="context of each, tokens")
    axes[0][1].legend()
    _parts(axes[1][0], by_sequences, "sequences")
    _parts(axes[1][1], by_context, "context")
    axes[1][0].set(title=f"a step at {shortest} tokens of context each", xlabel="sequences at once")
    axes[1][1].set(title="a step of one sequence", xlabel="context, tokens")
    figure.legend(*axes[1][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _line(axes: Axes, points: list[dict[str, Any]], over: str, style: str, label: str = "") -> None:
    axes.plot([point[over] for point in points], [point["tokens_per_second"] for point in points], style, color="#12355b", label=label)
    axes.set(ylabel="tokens per second, of all sequences", xscale="log", ylim=(0, None))
    axes.set_xticks([point[over] for point in points], [f"{point[over]:,}" for point in points], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())


def _parts(axes: Axes, points: list[dict[str, Any]], over: str) -> None:
    """Shares of a step. Output is another process's, so all may come to more than the whole."""
    bottom = [0.0] * len(points)
    for part, (color, hatch) in PARTS.items():
        shares = [100 * point["parts_ms"][part] / point["step_ms"] for point in points]
        axes.bar([f"{point[over]:,}" for point in points], shares, bottom=bottom, label=part, color=color, hatch=hatch)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.axhline(100, color="black", linewidth=0.8, linestyle="--")
    axes.set(ylabel="% of the time of a step")
    axes.tick_params("x", rotation=45)


def _plain(axis: Axis) -> None:
    """Numbers on a logarithmic axis as people write them."""
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


CHARTS: dict[str, tuple[str, Callable[[Any], Figure]]] = {
    "compare": ("Output tokens per second, the same work in turn", compare),
    "streams": ("Servers side by side, many streams at once: 64 tokens each", streams),
    "http": ("Servers as requests come faster: answers of 32 tokens", http),
    "growth": ("How decoding grows with sequences and context, and where a step's time goes", growth),
}

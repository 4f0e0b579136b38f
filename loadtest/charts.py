"""Charts of measured figures, with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.axis import Axis  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FormatStrFormatter, NullFormatter  # noqa: E402

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Octavo: benchmarks</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 100%; height: auto }}
</style>
<h1>Octavo: benchmarks</h1>
<p>Tables, and how each figure is measured: docs/benchmarks.md.</p>
{charts}
</html>
"""


def draw(name: str, figures: Any, directory: Path) -> tuple[str, str]:
    """Writes NAME.png there; returns the chart's title and itself as SVG."""
    title, plot = CHARTS[name]
    figure = plot(figures)
    figure.tight_layout()
    figure.savefig(directory / f"{name}.png", dpi=110, metadata={"Software": None})
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return title, svg.getvalue()[svg.getvalue().index("<svg") :]


def html_page(drawn: dict[str, tuple[str, str]]) -> str:
    return PAGE.format(charts="\n".join(f"<h2>{title}</h2>\n{svg}" for title, svg in drawn.values()))


def compare(figures: dict[str, dict[str, float]]) -> Figure:
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    sides = [name for name in figures if "/" not in name]
    cases = list(figures["Octavo"])
    width = 0.8 / len(sides)
    for i, name in enumerate(sides):
        bars = axes.bar([x + i * width for x in range(len(cases))], [figures[name][case] for case in cases], width, label=name)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks([x + width * (len(sides) - 1) / 2 for x in range(len(cases))], cases)
    axes.set(xlabel="sequences", ylabel="tokens per second")
    axes.legend(frameon=False)
    return figure


def http(figures: dict[str, dict[str, dict[str, float]]]) -> Figure:
    figure, (answered, latency) = pyplot.subplots(1, 2, figsize=(8, 3.4))
    for name, by_rate in figures.items():
        rates = [float(rate) for rate in by_rate]
        answered.plot(rates, [found["requests/s"] for found in by_rate.values()], marker="o", label=name)
        latency.plot(rates, [found["whole answer p99"] / 1e3 for found in by_rate.values()], marker="o", label=name)
    answered.set(ylabel="requests answered a second")
    latency.set(ylabel="P99 of the whole answer, s")
    for axes in (answered, latency):
        axes.set(xlabel="requests arriving a second", xscale="log", yscale="log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.xaxis.set_minor_formatter(NullFormatter())
        _plain(axes.yaxis)
    answered.legend(frameon=False)
    return figure


def growth(points: list[dict[str, Any]]) -> Figure:
    figure, axes = pyplot.subplots(2, 2, figsize=(8, 6.4))
    shortest = min(point["context"] for point in points)
    by_sequences = [point for point in points if point["context"] == shortest]
    by_context = [point for point in points if point["sequences"] == 1]
    _line(axes[0][0], by_sequences, "sequences", f"{shortest} tokens of context each")
    _line(axes[0][1], [point for point in points if point["sequences"] == 8], "context", "8 sequences")
    _line(axes[0][1], by_context, "context", "1 sequence")
    _parts(axes[1][0], by_sequences, "sequences")
    _parts(axes[1][1], by_context, "context")
    return figure


def _line(axes: Axes, points: list[dict[str, Any]], over: str, label: str) -> None:
    axes.plot([point[over] for point in points], [point["tokens_per_second"] for point in points], marker="o", label=label)
    axes.set(xlabel=over, ylabel="tokens per second", xscale="log", ylim=(0, None))
    axes.set_xticks([point[over] for point in points], [str(point[over]) for point in points], rotation=45)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False)


def _parts(axes: Axes, points: list[dict[str, Any]], over: str) -> None:
    """Shares of a step. Output is another process's, so all may come to more than the whole."""
    bottom = [0.0] * len(points)
    for part in points[0]["parts_ms"]:
        shares = [100 * point["parts_ms"][part] / point["step_ms"] for point in points]
        axes.bar([str(point[over]) for point in points], shares, bottom=bottom, label=part)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set(xlabel=over, ylabel="% of a step's time")
    axes.tick_params("x", rotation=45)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _plain(axis: Axis) -> None:
    """Numbers on a logarithmic axis as people write them."""
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


CHARTS: dict[str, tuple[str, Callable[[Any], Figure]]] = {
    "compare": ("Output tokens per second, the same work in turn", compare),
    "http": ("Servers as requests come faster: answers of 32 tokens", http),
    "growth": ("How decoding grows with sequences and context, and where a step's time goes", growth),
}

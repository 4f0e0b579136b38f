"""One picture of a server, as lines that fit a terminal of any size from 60 columns and 16 lines."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from server.top.state import PARTS, History, Rates, State

_HUES = ("#e37a63", "#74b3d1", "#86bd7f", "#e2a857", "#a595d6", "#e094b5", "#6cc4bc", "#bd9c72")
_PART_HUES = dict(zip(PARTS, ("#a595d6", "#e37a63", "#e2a857", "#74b3d1"), strict=True))
_FREE, _CACHED, _SHARED = "#3a3531", "#7d7368", "#ece7e0"
_HELD_BY_NONE = {-1: _FREE, -2: _CACHED}
_PHASES = {"ready": "bold #86bd7f", "failed": "bold #e37a63"}  # others are on their way to something
_SPARKS = "▁▂▃▄▅▆▇█"
_LABEL = 10  # columns


class Frame:
    """What there is to see of a server; `trouble` is why there is nothing newer, `hint` the last line."""

    def __init__(self, url: str, history: History, trouble: str | None = None, hint: str = "") -> None:
        self.url, self.history, self.trouble, self.hint = url, history, trouble, hint

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or options.size.height
        state = self.history.latest
        head = [_title(self.url, state)]
        if self.trouble is not None:
            head.append(Text(self.trouble, "#e37a63", no_wrap=False))
        if state is None:
            yield from head
            return
        rates = self.history.rates
        hues = [_HUES[place % len(_HUES)] for place in self.history.places.values()]  # of the sequences, as they stand in the state
        head += [
            _queue(state),
            Text(),
            _throughput(self.history, width),
            _step(rates, width),
            _cache(state),
            *_pool(state, hues, width, lines=max(2, height // 4)),
            Text(),
        ]
        for line in head:
            line.truncate(width, overflow="ellipsis")
            yield line
        # The table's head takes a line, and so does the hint.
        yield _requests(state, hues, rates, width, max(1, height - len(head) - 2))
        if self.hint:
            yield Text(self.hint, "dim")


def _title(url: str, state: State | None) -> Text:
    title = Text.assemble(("octavo", "bold #e37a63"), "  ", (url, "dim"))
    if state is not None:
        title.append_text(Text.assemble("  ", (state.model, "bold"), "  ", (state.phase, _PHASES.get(state.phase, "bold #e2a857"))))
        if state.engine_restarts:
            title.append(f"  engine restarts: {state.engine_restarts}", "#e2a857")
    return title


def _queue(state: State) -> Text:
    stats = state.stats
    figures = [
        (f"{stats.num_running}", f" of {state.max_num_seqs} running"),
        (f"{stats.num_waiting}", " waiting"),
        (f"{stats.num_swapped}", " swapped out"),
        (f"{stats.preemptions_total:,}", " preemptions"),
    ]
    return Text("   ").join(Text.assemble((number, "bold"), (name, "dim")) for number, name in figures)


def _labelled(label: str) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"))


def _throughput(history: History, width: int) -> Text:
    rates = history.rates
    figures = Text.assemble("  ", (f"{rates.generated:,.0f}", "bold"), (" answers  ", "dim"), f"{rates.prompt:,.0f}", (" prompts", "dim"))
    room = max(0, width - _LABEL - len(figures.plain))
    past = list(history.throughput)[-room:] if room else []
    line = _labelled("tokens/s")
    line.append(" " * (room - len(past)) + sparkline(past), "#e37a63")
    return line.append_text(figures)


def sparkline(values: Iterable[float]) -> str:
    """A bar of eight heights for each value; the largest is the highest."""
    known = list(values)
    most = max(known, default=0.0)
    return "".join(_SPARKS[min(7, int(8 * value / most))] if most > 0 else _SPARKS[0] for value in known)


def _step(rates: Rates, width: int) -> Text:
    line = _labelled("step")
    if not rates.part_ms:
        return line.append("none", "dim")
    total = sum(rates.part_ms.values())
    figures = Text.assemble("  ", (f"{total:.1f} ms", "bold"))
    for part, ms in rates.part_ms.items():
        figures.append_text(Text.assemble("  ", (part, _PART_HUES[part]), f" {ms:.1f}"))
    room = max(0, width - _LABEL - len(figures.plain))
    filled, passed = 0, 0.0
    for part, ms in rates.part_ms.items():
        passed += ms
        end = round(room * passed / total) if total else 0
        line.append("▇" * (end - filled), _PART_HUES[part])
        filled = end
    return line.append(" " * (room - filled)).append_text(figures)


def _cache(state: State) -> Text:
    stats = state.stats
    looked = stats.prompt_tokens_total
    hits = f"{stats.prefix_cache_hits_total / looked:.0%}" if looked else "-"
    line = _labelled("KV blocks")
    for number, name, hue in (
        (stats.blocks_referenced, "in use", _HUES[0]),
        (stats.blocks_cached, "cached", _CACHED),
        (stats.blocks_free, "free", _FREE),
    ):
        line.append_text(Text.assemble(("■ ", hue), (f"{number:,}", "bold"), (f" {name}  ", "dim")))
    return line.append_text(Text.assemble((f"of {stats.blocks_total:,}   prefix hits ", "dim"), (hits, "bold")))


def _pool(state: State, hues: list[str], width: int, lines: int) -> list[Text]:
    """The map: two rows of blocks a line, the upper one as the foreground of a half block, the lower one as its background."""
    blocks = state.blocks
    stride = -(-len(blocks) // (2 * lines * width)) or 1
    cells = [hues[holder] if holder >= 0 else _HELD_BY_NONE.get(holder, _SHARED) for holder in blocks[::stride]]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    drawn: list[Text] = []
    for upper, lower in zip(rows[::2], [*rows[1::2], []], strict=False):
        line = Text()
        for place, hue in enumerate(upper):
            line.append("▀", f"{hue} on {lower[place]}" if place < len(lower) else hue)
        drawn.append(line)
    return drawn


def _requests(state: State, hues: list[str], rates: Rates, width: int, lines: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), width=width, header_style="dim", pad_edge=False)
    table.add_column("request", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("phase", "prompt", "cached", "generated", "tokens/s", "blocks"):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    shown = state.sequences if len(state.sequences) <= lines else state.sequences[: lines - 1]
    for one, hue in zip(shown, hues, strict=False):
        speed = rates.sequences.get(one.request_id)
        table.add_row(
            Text.assemble(("■ ", hue if one.num_blocks else "default"), one.request_id),
            Text(one.phase, "#86bd7f" if one.phase == "decode" else "#74b3d1" if one.phase == "prefill" else "dim"),
            f"{one.num_prompt_tokens:,}",
            f"{one.num_cached_tokens:,}",
            f"{one.num_generated_tokens:,}/{one.max_tokens:,}",
            "-" if speed is None else f"{speed:.0f}",
            str(one.num_blocks),
        )
    if not shown:
        table.add_row(Text("none", "dim"))
    if len(shown) < len(state.sequences):
        table.add_row(Text(f"and {len(state.sequences) - len(shown)} more", "dim"))
    return table

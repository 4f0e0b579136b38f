"""Writes the Grafana dashboard: `python docker/grafana/dashboard.py`, after which dashboards/octavo.json is what this file says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "dashboards" / "octavo.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24  # of Grafana's grid


@dataclass(frozen=True)
class Panel:
    """One panel: a PromQL expression by legend, `$i` in it standing for the choice of servers."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    help: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8
    height: int = 8


def _rate(counter: str, by: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{$i}}[$__rate_interval]))" if by else f"sum(rate({counter}{{$i}}[$__rate_interval]))"


def _quantiles(histogram: str, *quantiles: float) -> dict[str, str]:
    return {f"p{100 * q:g}": f"histogram_quantile({q:g}, {_rate(histogram + '_bucket', 'le')})" for q in quantiles or (0.5, 0.9, 0.99)}


def _mean(histogram: str) -> str:
    return f"{_rate(histogram + '_sum')} / {_rate(histogram + '_count')}"


def _stat(title: str, query: str, unit: str = "short", help: str = "") -> Panel:
    return Panel(title, {title: query}, unit, help, kind="stat", width=4, height=4)


ROWS: dict[str, list[Panel]] = {
    "Now": [
        _stat("Servers up", 'count(up{job="octavo", $i} == 1)'),
        _stat("Requests per second", _rate("octavo_http_responses_total"), "reqps"),
        _stat("Tokens per second", _rate("octavo_generation_tokens_total")),
        _stat("Running", "sum(octavo_sequences_running{$i})", help="Sequences in the running batch"),
        _stat("Waiting", "sum(octavo_sequences_waiting{$i})", help="Sequences that wait for their first step, or were preempted"),
        _stat("KV cache in use", "max(octavo_kv_cache_usage_ratio{$i})", "percentunit", "Of the server that has most in use"),
    ],
    "Latency": [
        Panel("Time to first token", _quantiles("octavo_time_to_first_token_seconds"), "s", "From arrival to the first token"),
        Panel("Between tokens", _quantiles("octavo_inter_token_latency_seconds"), "s"),
        Panel("Whole requests", _quantiles("octavo_request_duration_seconds"), "s", "From arrival to the end"),
        Panel("Waiting for the first step", _quantiles("octavo_request_queue_seconds"), "s"),
        Panel(
            "Where requests spend their time",
            {phase: _mean(f"octavo_request_{phase}_seconds") for phase in ("queue", "prefill", "decode")},
            "s",
            "Mean of the requests that ended",
            stacked=True,
        ),
        Panel(
            "Where steps spend their time",
            {"{{part}}": f"{_rate('octavo_step_seconds_total', 'part')} / on () group_left () {_rate('octavo_engine_steps_total')}"},
            "s",
            "Mean of a step of the engine",
            stacked=True,
        ),
    ],
    "Throughput": [
        Panel(
            "Tokens per second",
            {"prompt": _rate("octavo_prompt_tokens_total"), "generated": _rate("octavo_generation_tokens_total")},
            help="Prompt tokens found in the prefix cache are counted too",
        ),
        Panel("Answers by status", {"{{status}}": _rate("octavo_http_responses_total", "status")}, "reqps", stacked=True),
        Panel("Sequences by finish reason", {"{{finish_reason}}": _rate("octavo_sequences_finished_total", "finish_reason")}, stacked=True),
        Panel(
            "Tokens of a request",
            {"prompt": _mean("octavo_request_prompt_tokens"), "generated": _mean("octavo_request_generation_tokens")},
            help="Means",
        ),
        Panel("Tokens of a step", {"mean": _mean("octavo_step_tokens")} | _quantiles("octavo_step_tokens", 0.5, 0.99)),
        Panel("Steps per second", {"{{instance}}": _rate("octavo_engine_steps_total", "instance")}),
    ],
    "Scheduling and memory": [
        Panel(
            "Sequences",
            {state: f"sum(octavo_sequences_{state}{{$i}})" for state in ("running", "waiting", "swapped")},
            help="Swapped ones wait with their KV in host memory",
        ),
        Panel(
            "KV blocks", {"{{state}}": "sum by (state) (octavo_kv_blocks{$i})"}, help="Cached blocks are free to be reused", stacked=True
        ),
        Panel(
            "KV cache in use",
            {"{{instance}}": "octavo_kv_cache_usage_ratio{$i}", "{{instance}}, unfilled": "octavo_kv_cache_fragmentation_ratio{$i}"},
            "percentunit",
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            {
                "found": f"{_rate('octavo_prefix_cache_hits_total')} / {_rate('octavo_prefix_cache_queries_total')}",
                "of all, in host memory": f"{_rate('octavo_prefix_cache_host_hits_total')} / {_rate('octavo_prefix_cache_queries_total')}",
            },
            "percentunit",
        ),
        Panel("Preemptions per second", {"{{mode}}": _rate("octavo_preemptions_total", "mode")}, help="What becomes of the KV"),
        Panel(
            "Evictions per second",
            {"from the KV cache": _rate("octavo_cache_evictions_total"), "from host memory": _rate("octavo_host_cache_evictions_total")},
        ),
        Panel("KV blocks of host memory", {"{{state}}": "sum by (state) (octavo_host_kv_blocks{$i})"}, stacked=True),
        Panel("Blocks swapped per second", {"{{direction}}": _rate("octavo_swap_blocks_total", "direction")}),
        Panel("Time in copies between device and host", {"{{instance}}": _rate("octavo_swap_seconds_total", "instance")}, "percentunit"),
    ],
    "Keys and faults": [
        Panel("Requests per second by key", {"{{key}}": _rate("octavo_key_requests_total", "key")}, "reqps", stacked=True),
        Panel("Tokens per second by key", {"{{key}}, {{kind}}": _rate("octavo_key_tokens_total", "key, kind")}, stacked=True),
        Panel(
            "Engines started again",
            {"{{instance}}": "sum by (instance) (increase(octavo_engine_restarts_total{$i}[$__rate_interval]))"},
            help="Each is an engine that died. Running requests go on",
        ),
        Panel("Requests held", {"{{instance}}": "octavo_http_requests_pending{$i}"}, help="Beyond --max-pending-requests: 429"),
        Panel(
            "Answers that are no success",
            {
                "refused": 'sum(rate(octavo_http_responses_total{$i, status=~"4.."}[$__rate_interval])) or vector(0)',
                "failed": 'sum(rate(octavo_http_responses_total{$i, status=~"5.."}[$__rate_interval])) or vector(0)',
                "left by the client": 'sum(rate(octavo_http_responses_total{$i, status="left"}[$__rate_interval])) or vector(0)',
            },
            "reqps",
        ),
        Panel("Alerts", {"{{alertname}} {{instance}}": 'ALERTS{alertstate="firing"} or on () vector(0)'}, help="0: none"),
    ],
}


def dashboard() -> dict[str, Any]:
    """What Grafana reads."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + panel.height
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x += panel.width
        y += row[-1].height
    return {
        "uid": "octavo",
        "title": "Octavo",
        "tags": ["llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,  # one crosshair for all
        "templating": {"list": _VARIABLES},
        "panels": panels,
    }


_VARIABLES: list[dict[str, Any]] = [
    {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
    {
        "name": "instance",
        "type": "query",
        "label": "server",
        "datasource": _SOURCE,
        "query": {"query": "label_values(octavo_sequences_running, instance)", "refId": "instance"},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    },
]


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    is_stat = panel.kind == "stat"
    custom = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 8, "showPoints": "never", "spanNulls": True}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}  # type: ignore[assignment]
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": query.replace("$i", 'instance=~"$instance"'),
            "legendFormat": legend,
            "instant": is_stat,
            "range": not is_stat,
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    options = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "none"}
        if is_stat
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {} if is_stat else custom}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())

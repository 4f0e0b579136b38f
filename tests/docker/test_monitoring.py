"""The dashboard and the alerts, as far as they can be looked at without load: `python -m loadtest.dashboard_check` is the rest."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from served_flags import ROOT

from engine.stats import EngineStats
from loadtest.dashboard_check import DASHBOARD, queries
from loadtest.prometheus import DIRECTORY, is_installed
from server.access.caller import Caller
from server.observability.metrics import Metrics
from server.observability.record import RequestRecord

needs_prometheus = pytest.mark.skipif(not is_installed(), reason="needs Prometheus: on Debian, apt-get install prometheus")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each metric that a server has, by its name."""
    metrics = Metrics(EngineStats)
    record = RequestRecord("r", "POST", "/v1/completions", started=1.0, first_token=2.0, submitted=1.0, queue_seconds=0.5)
    record.caller, record.status = Caller("front-end"), 200
    record.finish_reasons.append("stop")
    metrics.request_ended(record, 3.0)
    found: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate"}}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", metrics.render().decode(), re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.fixture(scope="module")
def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    alerts = [rule["expr"] for group in yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    return [expression for _, expression in queries(dashboard)] + alerts


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert DASHBOARD.read_text() == _script().text()


def test_every_expression_asks_for_metrics_and_labels_that_servers_have(expressions: list[str], exported: dict[str, set[str]]) -> None:
    assert len(expressions) > 50
    for expression in expressions:
        names = set(re.findall(r"\b(?:octavo_\w+|up|ALERTS)\b", expression))
        assert names
        assert names <= set(exported), expression
        labels = {"instance", "job"}.union(*(exported[name] for name in names))
        asked = set(re.findall(r"(\w+)=~?\"", expression))
        for by in re.findall(r"\bby \(([\w, ]*)\)", expression):
            asked.update(by.split(", "))
        assert asked <= labels, expression


def test_what_a_server_counts_is_on_the_dashboard(expressions: list[str], exported: dict[str, set[str]]) -> None:
    shown = set(re.findall(r"octavo_\w+", " ".join(expressions)))
    bases = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown}
    left_out = {
        "octavo_kv_cache_shared_references",
        "octavo_prefix_cache_hit_ratio",  # of all time; the dashboard has that of the last minutes
        "octavo_request_params_max_tokens",
        "octavo_request_params_n",
        "octavo_request_inference_seconds",  # prefill and decode together
        "octavo_swap_copies_total",
    }
    counted = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in exported if name.startswith("octavo_")}
    assert counted - bases == left_out


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@needs_prometheus
def test_prometheus_takes_its_settings_and_rules() -> None:
    done = subprocess.run(["promtool", "check", "config", str(DIRECTORY / "prometheus.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 rules found" in done.stdout


@needs_prometheus
def test_alerts_fire_when_they_should_and_only_then() -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    done = subprocess.run(["promtool", "test", "rules", str(cases)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboard", ROOT / "docker" / "grafana" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["dashboard"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

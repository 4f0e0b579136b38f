"""Prometheus metrics: the engine's counts as of its latest step, and times as clients of this process see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.stats import EngineStats
from server.record import RequestRecord

_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_REQUEST_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

# field of EngineStats, name, what it counts
_ENGINE_COUNTERS = (
    ("steps_total", "octavo_engine_steps", "Steps of the engine"),
    ("prompt_tokens_total", "octavo_prompt_tokens", "Prompt tokens of scheduled requests, cached ones included"),
    ("generation_tokens_total", "octavo_generation_tokens", "Tokens generated"),
    ("prompt_tokens_total", "octavo_prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
    ("prefix_cache_hits_total", "octavo_prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    ("preemptions_total", "octavo_preemptions", "Sequences put back to waiting for want of KV blocks"),
    ("evictions_total", "octavo_cache_evictions", "Cached KV blocks given up for new content"),
)


class Metrics:
    """One server's metrics, in a registry of their own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each counter, which says when this process started
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine_stats))
        self.first_token = Histogram(
            "octavo_time_to_first_token_seconds",
            "From a request's arrival to its first token",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "octavo_inter_token_latency_seconds",
            "Between tokens of one request",
            buckets=_INTER_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "octavo_request_duration_seconds",
            "From a generating request's arrival to its end",
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._finished = Counter(
            "octavo_sequences_finished", "Sequences that ended, by finish reason", ["finish_reason"], registry=self.registry
        )
        self._responses = Counter(
            "octavo_http_responses", "HTTP answers, by method and status", ["method", "status"], registry=self.registry
        )
        self.pending = Gauge("octavo_http_requests_pending", "Generating requests that this process holds", registry=self.registry)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def request_ended(self, record: RequestRecord, ended: float) -> None:
        """Count a request once its answer is out."""
        method = record.method if record.method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD") else "other"
        self._responses.labels(method, "left" if record.client_left else str(record.status)).inc()
        for reason in record.finish_reasons:
            self._finished.labels(reason).inc()
        if record.first_token is not None:
            self._duration.observe(ended - record.started)


class _EngineCollector(Collector):
    """Reads the engine's latest snapshot when Prometheus asks."""

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self.engine_stats = engine_stats

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        stats = self.engine_stats()
        yield GaugeMetricFamily("octavo_sequences_running", "Sequences in the running batch", stats.num_running)
        yield GaugeMetricFamily("octavo_sequences_waiting", "Sequences that wait, preempted ones included", stats.num_waiting)
        usage = stats.blocks_referenced / stats.blocks_total if stats.blocks_total else 0.0
        yield GaugeMetricFamily("octavo_kv_cache_usage_ratio", "Share of the KV blocks that sequences hold", usage)
        blocks = GaugeMetricFamily("octavo_kv_blocks", "KV blocks by state", labels=["state"])
        for state in ("referenced", "cached", "free"):
            blocks.add_metric([state], getattr(stats, f"blocks_{state}"))
        yield blocks
        for field, name, help in _ENGINE_COUNTERS:
            yield CounterMetricFamily(name, help, getattr(stats, field))

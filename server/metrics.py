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
    ("prefix_cache_host_hits_total", "octavo_prefix_cache_host_hits", "Of these, tokens found in host memory only"),
    ("evictions_total", "octavo_cache_evictions", "Cached KV blocks given up for new content"),
    ("host_evictions_total", "octavo_host_cache_evictions", "Cached blocks of host memory given up for new content"),
    ("swap_seconds_total", "octavo_swap_seconds", "Time in copies of KV blocks between device and host memory"),
)


class Metrics:
    """One server's metrics, in a registry of their own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine_stats: Callable[[], EngineStats], engine_restarts: Callable[[], int] = lambda: 0) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each counter, which says when this process started
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine_stats, engine_restarts))
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
        self._key_requests = Counter("octavo_key_requests", "HTTP requests, by the name of their API key", ["key"], registry=self.registry)
        self._key_tokens = Counter(
            "octavo_key_tokens", "Tokens, by the name of the request's API key", ["key", "kind"], registry=self.registry
        )
        self.pending = Gauge("octavo_http_requests_pending", "Generating requests that this process holds", registry=self.registry)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def request_ended(self, record: RequestRecord, ended: float) -> None:
        """Count a request once its answer is out."""
        method = record.method if record.method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD") else "other"
        self._responses.labels(method, "left" if record.client_left else str(record.status)).inc()
        if key := record.caller.name:
            self._key_requests.labels(key).inc()
            self._key_tokens.labels(key, "prompt").inc(record.prompt_tokens)
            self._key_tokens.labels(key, "completion").inc(record.completion_tokens)
        for reason in record.finish_reasons:
            self._finished.labels(reason).inc()
        if record.first_token is not None:
            self._duration.observe(ended - record.started)


class _EngineCollector(Collector):
    """Reads the engine's latest snapshot when Prometheus asks."""

    def __init__(self, engine_stats: Callable[[], EngineStats], engine_restarts: Callable[[], int]) -> None:
        self.engine_stats = engine_stats
        self.engine_restarts = engine_restarts

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield CounterMetricFamily("octavo_engine_restarts", "Engines started in the place of one that died", self.engine_restarts())
        stats = self.engine_stats()
        yield GaugeMetricFamily("octavo_sequences_running", "Sequences in the running batch", stats.num_running)
        yield GaugeMetricFamily("octavo_sequences_waiting", "Sequences that wait, preempted ones included", stats.num_waiting)
        yield GaugeMetricFamily("octavo_sequences_swapped", "Waiting sequences whose KV is in host memory", stats.num_swapped)
        usage = _ratio(stats.blocks_referenced, stats.blocks_total)
        yield GaugeMetricFamily("octavo_kv_cache_usage_ratio", "Share of the KV blocks that sequences hold", usage)
        unused = _ratio(stats.unused_slots, stats.table_slots)
        yield GaugeMetricFamily("octavo_kv_cache_fragmentation_ratio", "Share of the slots in sequences' KV blocks without KV", unused)
        yield GaugeMetricFamily(
            "octavo_kv_cache_shared_references", "Places in block tables beyond the first of each KV block", stats.shared_references
        )
        hits = _ratio(stats.prefix_cache_hits_total, stats.prompt_tokens_total)
        yield GaugeMetricFamily("octavo_prefix_cache_hit_ratio", "Share of all prompt tokens so far found in the prefix cache", hits)
        yield _labelled_gauge(
            "octavo_kv_blocks",
            "KV blocks by state",
            "state",
            {"referenced": stats.blocks_referenced, "cached": stats.blocks_cached, "free": stats.blocks_free},
        )
        host_free = stats.host_blocks_total - stats.host_blocks_held - stats.host_blocks_cached
        yield _labelled_gauge(
            "octavo_host_kv_blocks",
            "KV blocks of host memory by state",
            "state",
            {"held": stats.host_blocks_held, "cached": stats.host_blocks_cached, "free": host_free},
        )
        recomputed = stats.preemptions_total - stats.preemptions_swap_total
        yield _labelled_counter(
            "octavo_preemptions",
            "Sequences put back to waiting for want of KV blocks, by what becomes of their KV",
            "mode",
            {"swap": stats.preemptions_swap_total, "recompute": recomputed},
        )
        yield _labelled_counter(
            "octavo_swap_copies",
            "Batched copies of KV blocks to host memory and back",
            "direction",
            {"out": stats.swap_out_copies_total, "in": stats.swap_in_copies_total},
        )
        yield _labelled_counter(
            "octavo_swap_blocks",
            "KV blocks copied to host memory and back",
            "direction",
            {"out": stats.swap_out_blocks_total, "in": stats.swap_in_blocks_total},
        )
        for field, name, help in _ENGINE_COUNTERS:
            yield CounterMetricFamily(name, help, getattr(stats, field))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _labelled_gauge(name: str, help: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _labelled_counter(name: str, help: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family

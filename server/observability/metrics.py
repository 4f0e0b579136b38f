"""Prometheus metrics: the engine's counts as of its latest step, and times as clients of this process see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.stats import STEP_TOKEN_BUCKETS, EngineStats
from server.observability.record import RequestRecord
from server.observability.vllm_metrics import VllmNames

_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_COUNT_BUCKETS = (1, 2, 5, 10, 20)
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
        self._renamed: CollectorRegistry | None = None
        self.registry.register(_EngineCollector(engine_stats, engine_restarts))
        self.first_token = self._histogram("octavo_time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN_BUCKETS)
        self.inter_token = self._histogram("octavo_inter_token_latency_seconds", "Between tokens of one request", _INTER_TOKEN_BUCKETS)
        self._duration = self._histogram("octavo_request_duration_seconds", "From arrival to the end", _REQUEST_BUCKETS)
        self._queue = self._histogram("octavo_request_queue_seconds", "From arrival at the engine to the first step", _REQUEST_BUCKETS)
        self._prefill = self._histogram("octavo_request_prefill_seconds", "From the first step to the first token", _REQUEST_BUCKETS)
        self._inference = self._histogram("octavo_request_inference_seconds", "From the first step to the end", _REQUEST_BUCKETS)
        self._decode = self._histogram("octavo_request_decode_seconds", "From the first token to the end", _REQUEST_BUCKETS)
        self._prompt_tokens = self._histogram("octavo_request_prompt_tokens", "Prompt tokens of a request", _TOKEN_BUCKETS)
        self._completion_tokens = self._histogram("octavo_request_generation_tokens", "Tokens generated for a request", _TOKEN_BUCKETS)
        self._max_tokens = self._histogram("octavo_request_params_max_tokens", "max_tokens of requests that set it", _TOKEN_BUCKETS)
        self._samples = self._histogram("octavo_request_params_n", "n of requests", _COUNT_BUCKETS)
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
        return generate_latest(self.registry) + (b"" if self._renamed is None else generate_latest(self._renamed))

    def add_vllm_names(self, model_name: str, cache_config: Callable[[], dict[str, str]]) -> None:
        """From now on render every metric that vLLM has under its name as well."""
        self._renamed = CollectorRegistry()
        self._renamed.register(VllmNames(self.registry, model_name, cache_config))

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
            self._observe_phases(record, record.first_token, ended)

    def _observe_phases(self, record: RequestRecord, first_token: float, ended: float) -> None:
        self._decode.observe(ended - first_token)
        if record.submitted is not None and record.queue_seconds is not None:
            self._queue.observe(record.queue_seconds)
            first_step = min(first_token, record.submitted + record.queue_seconds)
            self._prefill.observe(first_token - first_step)
            self._inference.observe(ended - first_step)
        self._prompt_tokens.observe(record.prompt_tokens)
        self._completion_tokens.observe(record.completion_tokens)
        if record.params is not None:
            self._samples.observe(record.params.n)
            if record.params.max_tokens is not None:
                self._max_tokens.observe(record.params.max_tokens)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, buckets=buckets, registry=self.registry)


class _EngineCollector(Collector):
    """Reads the engine's latest snapshot when Prometheus asks."""

    def __init__(self, engine_stats: Callable[[], EngineStats], engine_restarts: Callable[[], int]) -> None:
        self.engine_stats = engine_stats
        self.engine_restarts = engine_restarts

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
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
        yield _labelled_counter(
            "octavo_step_seconds",
            "Time of the engine's steps, by part",
            "part",
            {
                "schedule": stats.schedule_seconds_total,
                "model": stats.model_seconds_total,
                "sample": stats.sample_seconds_total,
                "update": stats.update_seconds_total,
            },
        )
        yield _step_tokens(stats)
        for field, name, help in _ENGINE_COUNTERS:
            yield CounterMetricFamily(name, help, getattr(stats, field))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _labelled_gauge(name: str, help: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _step_tokens(stats: EngineStats) -> HistogramMetricFamily:
    bounds = [*map(str, STEP_TOKEN_BUCKETS), "+Inf"]
    counts = accumulate(stats.steps_by_tokens or [0] * len(bounds))
    buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
    return HistogramMetricFamily("octavo_step_tokens", "Tokens that a step computed", buckets=buckets, sum_value=stats.step_tokens_total)


def _labelled_counter(name: str, help: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family

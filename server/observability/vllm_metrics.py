"""vLLM's names for our metrics, so that dashboards and autoscalers made for it work here unchanged (--vllm-metric-names).

Names and labels are those of its documentation, "Production Metrics" (V1 engine), and a few older ones that dashboards still ask for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# Our name, without the suffix that Prometheus adds to counters, and theirs.
_NAMES = (
    ("octavo_sequences_running", "vllm:num_requests_running"),
    ("octavo_sequences_waiting", "vllm:num_requests_waiting"),
    ("octavo_sequences_swapped", "vllm:num_requests_swapped"),
    ("octavo_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
    ("octavo_kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc"),
    ("octavo_prefix_cache_queries", "vllm:prefix_cache_queries"),
    ("octavo_prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    ("octavo_prefix_cache_hits", "vllm:prefix_cache_hits"),
    ("octavo_prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    ("octavo_preemptions", "vllm:num_preemptions"),
    ("octavo_prompt_tokens", "vllm:prompt_tokens"),
    ("octavo_generation_tokens", "vllm:generation_tokens"),
    ("octavo_sequences_finished", "vllm:request_success"),
    ("octavo_step_tokens", "vllm:iteration_tokens_total"),
    ("octavo_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("octavo_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    ("octavo_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    ("octavo_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
    ("octavo_request_queue_seconds", "vllm:request_queue_time_seconds"),
    ("octavo_request_prefill_seconds", "vllm:request_prefill_time_seconds"),
    ("octavo_request_decode_seconds", "vllm:request_decode_time_seconds"),
    ("octavo_request_inference_seconds", "vllm:request_inference_time_seconds"),
    ("octavo_request_prompt_tokens", "vllm:request_prompt_tokens"),
    ("octavo_request_generation_tokens", "vllm:request_generation_tokens"),
    ("octavo_request_params_n", "vllm:request_params_n"),
    ("octavo_request_params_max_tokens", "vllm:request_params_max_tokens"),
)
_LABELS = {"finish_reason": "finished_reason"}
_SUMMED = frozenset({"mode"})  # labels that theirs has not: what differs in these alone is added up


class VllmNames(Collector):
    """Another registry's metrics once more, renamed."""

    def __init__(self, ours: CollectorRegistry, model_name: str, cache_config: Callable[[], dict[str, str]]) -> None:
        """`cache_config`: the labels of cache_config_info, whose value is always 1."""
        self._ours = ours
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cache_config = cache_config

    def collect(self) -> Iterator[Metric]:
        ours = {metric.name: metric for metric in self._ours.collect()}
        for our_name, name in _NAMES:
            yield self._renamed(ours[our_name], name)
        labels = {**self._labels, **self._cache_config()}
        info = GaugeMetricFamily("vllm:cache_config_info", "Settings of the KV cache", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info

    def _renamed(self, ours: Metric, name: str) -> Metric:
        metric = Metric(name, ours.documentation, ours.type)
        totals: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        for sample in ours.samples:
            labels = {_LABELS.get(label, label): value for label, value in sample.labels.items() if label not in _SUMMED}
            totals[sample.name.removeprefix(ours.name), tuple(labels.items())] += sample.value
        for (suffix, own), value in totals.items():
            metric.add_sample(name + suffix, {**self._labels, **dict(own)}, value)
        return metric

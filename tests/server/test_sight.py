"""What operators see of a running server: where time goes, what each sequence does, whose each block is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest
from live_server import Guarded, RunningServer
from prometheus_client.parser import text_string_to_metric_families

from engine.stats import STEP_TOKEN_BUCKETS, EngineStats
from server.observability.metrics import Metrics
from server.observability.record import RequestRecord

PHASES = ("queue", "prefill", "decode", "inference")


@pytest.fixture
def trace(http: httpx.Client) -> list[dict]:
    """The events after two requests at once."""

    def ask(prompt: str) -> None:
        http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "cache_salt": prompt}).raise_for_status()

    with ThreadPoolExecutor() as pool:
        list(pool.map(ask, ["A tale of two cities", "A brief history of time"]))
    events: list[dict] = http.get("/debug/timeline").json()["traceEvents"]
    return events


def test_a_timeline_names_every_step_and_the_sequences_in_it(trace: list[dict]) -> None:
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert [threads[1, track] for track in (1, 2, 3)] == ["scheduler", "model", "sampler"]
    steps = [e["args"] for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 2)]
    assert [b["step"] - a["step"] for a, b in pairwise(steps)] == [1] * (len(steps) - 1)
    of_sequences = [e for e in trace if e["ph"] == "X" and e["pid"] == 2]
    assert all((2, e["tid"]) in threads for e in of_sequences)
    for step in steps[-20:]:
        in_step = [e["args"]["tokens"] for e in of_sequences if e["args"]["step"] == step["step"]]
        assert (len(in_step), sum(in_step)) == (step["sequences"], step["tokens"])


def test_in_a_timeline_each_part_of_a_step_follows_the_one_before(trace: list[dict]) -> None:
    by_step: dict[int, list[dict]] = {}
    for event in trace:
        if event["ph"] == "X" and event["pid"] == 1:
            by_step.setdefault(event["args"]["step"], []).append(event)
    for parts in by_step.values():
        assert [part["tid"] for part in parts] == [1, 2, 3]
        for before, after in pairwise(parts):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.2  # rounded to tenths of a microsecond


def test_fewer_steps_can_be_asked_for(http: httpx.Client, trace: list[dict]) -> None:
    events = http.get("/debug/timeline", params={"steps": 3}).json()["traceEvents"]
    assert len({e["args"]["step"] for e in events if e["ph"] == "X"}) == 3
    assert http.get("/debug/timeline", params={"steps": 0}).json()["error"]["param"] == "steps"


def test_the_state_shows_each_sequence_and_the_blocks_that_it_holds(http: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines: Iterator[str] = stream.iter_lines()
        for _ in range(80):  # a few dozen tokens, a blank line after each
            next(lines)
        state = http.get("/debug/state").json()
    (sequence,) = state["sequences"]
    assert sequence["phase"] == "decode"
    assert 30 <= sequence["num_generated_tokens"] <= 400
    assert sequence["num_blocks"] == -(-(sequence["num_computed_tokens"]) // state["block_size"]) > 1
    assert state["blocks"].count(0) == sequence["num_blocks"]
    assert state["stats"]["blocks_total"] == len(state["blocks"]) * state["blocks_per_cell"]
    assert "Once" not in str(state), "what a request says is nobody's business"


def test_where_keys_are_asked_for_only_an_admin_looks_into_the_engine(guarded: Guarded) -> None:
    def status(path: str, key: str | None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {guarded.keys[key]}"}
        return httpx.get(guarded.url + path, headers=headers).status_code

    for path in ("/debug/state", "/debug/timeline"):
        assert [status(path, key) for key in (None, "front", "ops")] == [401, 403, 200]


def test_a_request_is_counted_in_each_phase_of_its_life(server: RunningServer, http: httpx.Client) -> None:
    def counts() -> list[float]:
        return [server.metric(f"octavo_request_{phase}_seconds_count") for phase in PHASES]

    before = counts()
    http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3})
    assert counts() == [count + 1 for count in before]


def test_the_parts_of_a_step_and_its_tokens_are_counted() -> None:
    by_tokens = [0] * (len(STEP_TOKEN_BUCKETS) + 1)
    by_tokens[0], by_tokens[3], by_tokens[-1] = 5, 2, 1
    stats = EngineStats(steps_by_tokens=by_tokens, step_tokens_total=10_021, model_seconds_total=2.5, sample_seconds_total=0.5)
    families = {family.name: family for family in text_string_to_metric_families(Metrics(lambda: stats).render().decode())}
    parts = {sample.labels["part"]: sample.value for sample in families["octavo_step_seconds"].samples}
    assert parts == {"schedule": 0, "model": 2.5, "sample": 0.5, "update": 0}
    steps = {(s.name, s.labels.get("le")): s.value for s in families["octavo_step_tokens"].samples}
    assert steps["octavo_step_tokens_bucket", "4"] == 5
    assert steps["octavo_step_tokens_bucket", "8"] == steps["octavo_step_tokens_bucket", "8192"] == 7
    assert steps["octavo_step_tokens_count", None] == 8
    assert steps["octavo_step_tokens_sum", None] == 10_021


def test_under_vllms_names_stand_the_same_values() -> None:
    metrics = Metrics(lambda: EngineStats(num_running=7, preemptions_total=5, preemptions_swap_total=3, generation_tokens_total=90))
    metrics.add_vllm_names("m", lambda: {"block_size": "16"})
    record = RequestRecord("r", "POST", "/v1/completions", started=10.0, first_token=12.0, submitted=10.5, queue_seconds=1.0)
    record.finish_reasons.append("stop")
    metrics.request_ended(record, 15.0)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    samples = {s.name: s for family in families.values() for s in family.samples if s.name.startswith("vllm:")}
    assert samples["vllm:num_requests_running"].value == 7
    assert samples["vllm:num_preemptions_total"].value == 5
    assert samples["vllm:generation_tokens_total"].value == 90
    assert samples["vllm:request_success_total"].labels == {"model_name": "m", "engine": "0", "finished_reason": "stop"}
    assert samples["vllm:request_queue_time_seconds_sum"].value == 1.0
    assert samples["vllm:request_prefill_time_seconds_sum"].value == 0.5
    assert samples["vllm:request_decode_time_seconds_sum"].value == 3.0
    assert samples["vllm:e2e_request_latency_seconds_sum"].value == 5.0
    assert samples["vllm:cache_config_info"].labels["block_size"] == "16"
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"

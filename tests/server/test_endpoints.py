"""The endpoints beside generation: models, tokens, health, metrics, version."""

from __future__ import annotations

import httpx
import openai
from live_server import RunningServer

MODEL = "SmolLM2-135M-Instruct"


def test_models_are_listed_and_found_by_name(client: openai.OpenAI, http: httpx.Client) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "octavo")
    assert client.models.retrieve(MODEL) == model
    assert http.get(f"/v1/models/{MODEL}").json()["max_model_len"] == 1024


def test_text_becomes_tokens_and_text_again(http: httpx.Client) -> None:
    text = "Ein naïver Text: 日本語 🦑\n"
    answer = http.post("/tokenize", json={"model": MODEL, "prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_messages_become_the_tokens_that_chat_would_see(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    tokens = http.post("/tokenize", json={"messages": messages}).json()
    usage = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()["usage"]
    assert tokens["count"] == usage["prompt_tokens"]
    closed = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert closed["count"] < tokens["count"]


def test_tokenize_wants_a_prompt_or_messages(http: httpx.Client) -> None:
    for body in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}):
        assert http.post("/tokenize", json=body).status_code == 400


def test_health_ready_and_version(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.get("/version").json() == {"version": "0.1.0"}


def test_metrics_count_what_was_served(server: RunningServer, http: httpx.Client) -> None:
    names = ["octavo_engine_steps_total", "octavo_generation_tokens_total", "octavo_prefix_cache_queries_total"]
    names += ['octavo_sequences_finished_total{finish_reason="length"}', "octavo_time_to_first_token_seconds_count"]
    names += ["octavo_inter_token_latency_seconds_count", 'octavo_http_responses_total{method="POST",status="200"}']
    body = {"prompt": "Count me", "max_tokens": 3, "ignore_eos": True}
    http.post("/v1/completions", json=body)
    before = [server.metric(name) for name in names]
    http.post("/v1/completions", json=body)
    server.wait_until_idle(3)
    grown = [server.metric(name) - start for name, start in zip(names, before, strict=True)]
    assert all(growth > 0 for growth in grown), dict(zip(names, grown, strict=True))
    assert server.metric("octavo_kv_cache_usage_ratio") == 0
    assert server.metric("octavo_http_requests_pending") == 0


def test_each_request_has_one_line_in_the_log(server: RunningServer, http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "Log me", "max_tokens": 3, "ignore_eos": True}, headers={"x-request-id": "log-me-1"})
    (line,) = [line for line in server.log.splitlines() if "log-me-1" in line]
    for part in ("POST /v1/completions 200", "completion_tokens=3", "ttft_ms=", "tokens_per_s=", "finish_reason=length"):
        assert part in line


def test_the_schema_of_the_api_is_documented(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert "/v1/chat/completions" in paths
    assert http.get("/docs").status_code == 404, "a page that needs the internet"


def test_head_gives_the_headers_of_get(http: httpx.Client) -> None:
    for path in ("/health", "/ready", "/v1/models", "/metrics"):
        answer = http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == http.get(path).headers["content-type"]
    assert http.head("/v1/chat/completions").status_code == 405

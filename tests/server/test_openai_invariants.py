"""Rules that hold whatever is asked for, and those between one server and another."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import Guarded, RunningServer
from starlette.types import Receive, Scope, Send

from engine.config import EngineConfig
from engine.loader.resolve import resolve_model
from engine.stats import EngineStats
from server.access.keys import KeyRing
from server.config import ServerConfig
from server.errors import ApiError
from server.middleware import RequestMiddleware
from server.service import Service

MODEL = "SmolLM2-135M-Instruct"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"messages": HELLO, "temperature": 0, "max_tokens": 12}
SQUID = "🦑日本語🦑日本語🦑日本語🦑日本語🦑日本語🦑日本語🦑"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}}}}


def _post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _choice(http: httpx.Client, **body: Any) -> dict[str, Any]:
    choice: dict[str, Any] = _post(http, CHAT, **{**GREEDY, **body})["choices"][0]
    return choice


ASKED = st.fixed_dictionaries(
    {"seed": st.integers(0, 5), "max_tokens": st.integers(1, 10), "temperature": st.sampled_from([0, 1, 1.5])},
    optional={
        "n": st.integers(1, 3),
        "logprobs": st.just(True),
        "stop": st.lists(st.sampled_from(["e", "the", " a", "is "]), min_size=1, max_size=6),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        "return_token_ids": st.just(True),
        "messages": st.just([{"role": "user", "content": f"Repeat: {SQUID}"}]),
        "min_p": st.just(0.05),
        "tools": st.just([TOOL]),
        "response_format": st.just({"type": "json_object"}),
    },
)


class TestEveryStream:
    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(ASKED)
    def test_it_keeps_the_rules_and_says_what_the_whole_says(self, http: httpx.Client, asked: dict[str, Any]) -> None:
        body = {"messages": HELLO, "tool_choice": "auto" if "tools" in asked else None, **asked}
        response = http.post(CHAT, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        *frames, done = [frame for frame in response.text.strip().split("\n\n") if not frame.startswith(":")]
        assert done == "data: [DONE]"
        chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
        whole = _post(http, CHAT, **{name: value for name, value in body.items() if name != "stream_options"})

        if asked.get("stream_options", {}).get("include_usage"):
            *chunks, last = chunks
            assert last["choices"] == []
            counted = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
            assert counted == {name: whole["usage"][name] for name in counted}
            assert all(chunk["usage"] is None for chunk in chunks)
        else:
            assert not any("usage" in chunk for chunk in chunks)

        for choice in whole["choices"]:
            pieces = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
            assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
            assert pieces[-1]["delta"] == {}
            assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [choice["finish_reason"]]
            assert "".join(piece["delta"].get("content", "") for piece in pieces) == (choice["message"]["content"] or "")
            assert not any("\ufffd" in piece["delta"].get("content", "") for piece in pieces[:-2])
            if "return_token_ids" in asked:
                assert [token for piece in pieces for token in piece.get("token_ids", [])] == choice["token_ids"]
            if "logprobs" in asked:
                entries = [entry for piece in pieces for entry in (piece["logprobs"] or {"content": []})["content"]]
                assert [entry["bytes"] for entry in entries] == [entry["bytes"] for entry in choice["logprobs"]["content"]]


class TestLogprobs:
    @pytest.mark.parametrize("content", ["Tell me about the sea.", f"Repeat this: {SQUID}"], ids=["words", "squids"])
    def test_concatenated_bytes_equal_the_output_before_stop_trimming_to_the_byte(self, http: httpx.Client, content: str) -> None:
        messages = [{"role": "user", "content": content}]
        untrimmed = _choice(http, messages=messages, max_tokens=24)["message"]["content"]
        stop = untrimmed[len(untrimmed) // 2 :][:2]
        stopped = _choice(http, messages=messages, max_tokens=24, stop=stop, logprobs=True)
        data = b"".join(bytes(entry["bytes"]) for entry in stopped["logprobs"]["content"])
        assert stopped["finish_reason"] == "stop"
        assert stopped["message"]["content"] == untrimmed[: untrimmed.index(stop)]
        assert untrimmed.encode().startswith(data)
        assert data.startswith((stopped["message"]["content"] + stop).encode())

    def test_bytes_that_are_not_whole_characters_are_given_in_bytes(self, http: httpx.Client) -> None:
        choice = _post(http, "/v1/completions", prompt=SQUID, temperature=0, max_tokens=24, logprobs=0)["choices"][0]
        assert any(token.startswith("bytes:") for token in choice["logprobs"]["tokens"])
        entries = _choice(http, messages=[{"role": "user", "content": f"Repeat this: {SQUID}"}], max_tokens=40, logprobs=True)
        parts = [bytes(entry["bytes"]) for entry in entries["logprobs"]["content"]]
        assert b"".join(parts).decode(errors="ignore").startswith(entries["message"]["content"].rstrip("\ufffd"))

    def test_the_chosen_tokens_own_logprob_is_given_when_it_is_not_among_the_k(self, http: httpx.Client) -> None:
        content = _choice(http, temperature=2, seed=1, logprobs=True, top_logprobs=1)["logprobs"]["content"]
        others = [entry for entry in content if entry["token"] != entry["top_logprobs"][0]["token"]]
        assert others
        assert all(len(entry["top_logprobs"]) == 1 and entry["logprob"] <= entry["top_logprobs"][0]["logprob"] for entry in content)


class TestEnds:
    def test_without_max_tokens_generation_may_fill_the_context(self, http: httpx.Client) -> None:
        body = {"messages": [{"role": "user", "content": "word " * 960}], "temperature": 0, "ignore_eos": True}
        answer = _post(http, CHAT, **body)
        assert answer["usage"]["total_tokens"] == 1024
        assert answer["choices"][0]["finish_reason"] == "length"

    def test_more_than_four_stop_strings_are_taken(self, http: httpx.Client) -> None:
        text = _choice(http)["message"]["content"]
        choice = _choice(http, stop=["never", "nowhere", "nobody", "nothing", "none", text[6:13]])
        assert (choice["stop_reason"], choice["message"]["content"]) == (text[6:13], text[:6])

    def test_special_tokens_are_skipped_unless_they_are_asked_for(self, http: httpx.Client) -> None:
        asked = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 60}
        plain, shown = _choice(http, **asked), _choice(http, **asked, skip_special_tokens=False, include_stop_str_in_output=True)
        assert "<|im_end|>" not in plain["message"]["content"]
        assert shown["message"]["content"] == plain["message"]["content"] + "<|im_end|>"

    def test_a_suffix_is_refused_as_the_model_cannot_fill_in_the_middle(self, http: httpx.Client) -> None:
        refused = http.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
        assert refused.status_code == 400
        assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == ("unsupported_parameter", "suffix")

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0.content.0"),
            (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages.0.content.0"),
            ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
            ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, "tools.0"),
            ("/v1/responses", {"input": [{"type": "computer_call", "call_id": "x"}]}, "input.0"),
            ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ],
        ids=["image", "audio", "input_image", "web_search", "computer", "anthropic"],
    )
    def test_what_the_model_cannot_see_or_hear_is_refused_as_unsupported(
        self, http: httpx.Client, path: str, body: dict[str, Any], param: str
    ) -> None:
        refused = http.post(path, json={**body, **({} if path == "/v1/responses" else {"max_tokens": 1})})
        error = refused.json()["error"]
        assert refused.status_code == 400
        assert error.get("code", error.get("details", {}).get("error_code")) == "unsupported_parameter"
        assert error["message"].startswith(param)

    def test_a_client_that_leaves_before_its_stream_begins_stops_the_work(self, server: RunningServer) -> None:
        server.wait_until_idle(10)
        before = server.metric("octavo_generation_tokens_total")
        prompts = [f"{number} " + "word " * 900 for number in range(24)]
        body = json.dumps({"prompt": prompts, "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port)) as leaving:
            leaving.sendall(head.encode() + body)
            server._wait(lambda: server.metric("octavo_http_requests_pending") > 0, 5)
        server.wait_until_idle(5)
        assert server.metric("octavo_generation_tokens_total") < before + 24 * 100


class TestSeeds:
    SAMPLED: dict[str, Any] = {"temperature": 1.3, "seed": 11, "n": 2, "top_p": 0.95, "frequency_penalty": 0.3}  # noqa: RUF012

    def test_a_seed_reproduces_under_load_and_on_another_server_of_the_same_build(self, http: httpx.Client, guarded: Guarded) -> None:
        body = {**GREEDY, **self.SAMPLED}
        alone = _post(http, CHAT, **body)
        contents = [choice["message"]["content"] for choice in alone["choices"]]
        others = [{**GREEDY, "seed": seed, "temperature": 1, "logit_bias": {"5": 1}} for seed in range(10)]
        with ThreadPoolExecutor(12) as pool:
            crowd = [pool.submit(_post, http, CHAT, **one) for one in others]
            again = [pool.submit(_post, http, CHAT, **body) for _ in range(2)]
            assert all(one.result() for one in crowd)
        for answer in again:
            assert [choice["message"]["content"] for choice in answer.result()["choices"]] == contents
        key = {"authorization": f"Bearer {guarded.keys['front']}"}
        there = httpx.post(f"{guarded.url}{CHAT}", json=body, headers=key, timeout=60).json()
        assert [choice["message"]["content"] for choice in there["choices"]] == contents
        assert there["system_fingerprint"] == alone["system_fingerprint"]


def _service(weights: str = "same", is_ready: bool = True, defaults: Any = None, generation_config: Any = "auto", **engine: Any) -> Service:
    """A service in front of an engine that is not there."""
    source = resolve_model(None)
    named = SimpleNamespace(
        name="sea", fingerprint=lambda: weights, generation_defaults=lambda: defaults or {}, chat_template=source.chat_template
    )
    face: Any = SimpleNamespace(
        source=named,
        tokenizer=source.tokenizer(),
        stats=EngineStats(),
        num_restarts=0,
        failure=None,
        is_ready=is_ready,
        max_model_len=64,
        config=EngineConfig(**engine),
    )
    return Service(face, ServerConfig(generation_config=generation_config))


@pytest.mark.parametrize("other", [{"weights": "other"}, {"dtype": "bfloat16"}, {"kv_cache_dtype": "float16"}], ids=str)
async def test_the_fingerprint_names_the_models_weights_and_the_numeric_settings(other: dict[str, Any]) -> None:
    one = _service().system_fingerprint
    assert one == _service(max_num_seqs=7).system_fingerprint
    assert one != _service(**other).system_fingerprint


async def test_the_models_own_defaults_hold_unless_the_server_says_otherwise() -> None:
    own = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2}
    assert _service(defaults=own).defaults == {"temperature": 0.6, "top_k": 20}
    assert _service(defaults=own, generation_config="none").defaults == {}


async def test_a_server_that_starts_or_drains_says_503() -> None:
    starting, draining = _service(is_ready=False), _service()
    draining._draining = True
    for service, code in ((starting, "server_starting"), (draining, "server_draining")):
        with pytest.raises(ApiError) as refused:
            service.check_open()
        assert (refused.value.status, refused.value.code, refused.value.headers["retry-after"]) == (503, code, "1")


async def test_an_error_that_nobody_foresaw_is_a_500_with_an_id_to_find_in_the_log_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the secret of the house")

    config = ServerConfig()
    app = RequestMiddleware(broken, config=config, keys=KeyRing(config), is_draining=lambda: False, observers=[])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://octavo") as client:
        answer = await client.get("/v1/models")
        await asyncio.sleep(0)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert answer.headers["x-request-id"] in error["message"]
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text

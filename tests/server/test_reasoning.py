"""Reasoning over HTTP: the default model under a template that makes it begin with its thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import running_server

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
ASKING: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "temperature": 0, "max_tokens": 48}
BUDGET = {"thinking_token_budget": 12}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]}},
}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_server(tmp_path_factory.mktemp("thinking"), "--chat-template", TEMPLATE) as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=60) as client:
            yield client


def _ask(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**ASKING, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_reasoning_is_apart_from_content_and_ends_with_its_budget(thinking: httpx.Client) -> None:
    answer = _ask(thinking, **BUDGET)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] != ""
    assert message["content"]
    assert "think>" not in message["content"] + message["reasoning"]
    num_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    num_marker = thinking.post("/tokenize", json={"prompt": "</think>", "add_special_tokens": False}).json()["count"]
    assert num_reasoning == 12 + num_marker < answer["usage"]["completion_tokens"]


def test_the_stream_comes_to_the_same(thinking: httpx.Client) -> None:
    whole = _ask(thinking, **BUDGET)
    body = {**ASKING, **BUDGET, "stream": True, "stream_options": {"include_usage": True}}
    frames = [frame[6:] for frame in thinking.post("/v1/chat/completions", json=body).text.split("\n\n") if frame.startswith("data: {")]
    *chunks, last = map(json.loads, frames)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    for field in ("reasoning_content", "reasoning", "content"):
        assert "".join(delta.get(field) or "" for delta in deltas) == whole["choices"][0]["message"][field]
    assert sum("reasoning_content" in delta for delta in deltas) > 1, "reasoning is not streamed"
    details = last["usage"]["completion_tokens_details"]
    assert details == whole["usage"]["completion_tokens_details"]


def test_without_an_end_all_is_reasoning(thinking: httpx.Client) -> None:
    choice = _ask(thinking, max_tokens=6)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert choice["message"]["reasoning_content"]


def test_no_effort_turns_it_off(thinking: httpx.Client) -> None:
    answer = _ask(thinking, reasoning_effort="none", max_tokens=6)
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert _ask(thinking, reasoning_effort="high", max_tokens=6)["choices"][0]["message"]["reasoning_content"]


def test_reasoning_that_is_not_wanted_is_counted_but_not_sent(thinking: httpx.Client) -> None:
    shown, hidden = _ask(thinking, **BUDGET), _ask(thinking, **BUDGET, include_reasoning=False)
    assert "reasoning_content" not in hidden["choices"][0]["message"]
    assert hidden["choices"][0]["message"]["content"] == shown["choices"][0]["message"]["content"]
    assert hidden["usage"]["completion_tokens_details"] == shown["usage"]["completion_tokens_details"]


def test_a_required_call_comes_after_the_reasoning(thinking: httpx.Client) -> None:
    message = _ask(thinking, **BUDGET, tools=[TOOL], tool_choice="required", max_tokens=100)["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] is None
    assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"])["up"], bool)


def test_reasoning_goes_back_to_the_template(thinking: httpx.Client) -> None:
    messages = [*ASKING["messages"], {"role": "assistant", "content": "Fine.", "reasoning": "It is May."}, *ASKING["messages"]]
    tokens = thinking.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert "<think>It is May.</think>" in thinking.post("/detokenize", json={"tokens": tokens}).json()["prompt"]

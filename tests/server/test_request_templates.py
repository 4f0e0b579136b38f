"""Chat templates that come with requests: refused, unless the operator allows them, and bounded then."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from crowding import patience
from live_server import Guarded

HELLO = [{"role": "user", "content": "Hello"}]


def _tokens(guarded: Guarded, template: str, **more: Any) -> httpx.Response:
    body = {"messages": HELLO, "chat_template": template, "return_token_strs": True, **more}
    return httpx.post(f"{guarded.url}/tokenize", json=body, headers={"x-api-key": guarded.keys["front"]}, timeout=30)


def test_where_they_are_not_allowed_they_are_refused_with_the_remedy(http: httpx.Client) -> None:
    refused = http.post("/v1/chat/completions", json={"messages": HELLO, "chat_template": "{{ 1 }}"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", "chat_template")
    assert "--trust-request-chat-template" in error["message"]


def test_where_they_are_allowed_they_make_the_prompt(guarded: Guarded) -> None:
    template = "{% for message in messages %}{{ sign }}{{ message.content }}{% endfor %}"
    strings = _tokens(guarded, template, chat_template_kwargs={"sign": ">"}).json()["token_strs"]
    assert "".join(strings) == ">Hello"
    body = {"messages": HELLO, "chat_template": template, "max_tokens": 1}
    answer = httpx.post(f"{guarded.url}/v1/chat/completions", json=body, headers={"x-api-key": guarded.keys["front"]})
    assert answer.json()["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
        "{{ 'a' * 10000000000 }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ raise_exception('no') }}",
        "x" * 70_000,
    ],
)
def test_they_reach_nothing_but_the_messages(guarded: Guarded, template: str) -> None:
    refused = _tokens(guarded, template)
    assert refused.status_code == 400, refused.text
    assert refused.elapsed.total_seconds() < patience(1)

"""From bytes to a validated body, or to a 400 that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from server.errors import ApiError
from server.protocol import fates
from server.protocol.body import parse_body
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest

HELLO = [{"role": "user", "content": "Hello"}]


def _chat(body: Any) -> ChatCompletionRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_body(data, ChatCompletionRequest, fates.CHAT, allow_unknown=False)


def _completion(body: Any) -> CompletionRequest:
    return parse_body(json.dumps(body).encode(), CompletionRequest, fates.COMPLETIONS, allow_unknown=False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"content": "Hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "robot", "content": "Hello"}]}, "messages.0.role"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}, "messages.0.content.0.type"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
        ({"messages": HELLO, "temperature": True}, "temperature"),
        ({"messages": HELLO, "temperature": 10**400}, "temperature"),
        ({"messages": HELLO, "max_tokens": 1.5}, "max_tokens"),
        ({"messages": HELLO, "n": "2"}, "n"),
        ({"messages": HELLO, "stop": [1]}, "stop"),
        ({"messages": HELLO, "stop": ["x"] * 65}, "stop"),
        ({"messages": HELLO, "stop": ["x" * 1025]}, "stop"),
        ({"messages": HELLO, "bad_words": ["x" * 1025]}, "bad_words"),
        ({"messages": HELLO, "stream": "yes"}, "stream"),
        ({"messages": HELLO, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"messages": HELLO, "priority": 10**30}, "priority"),
        ({"messages": HELLO, "min_tokens": 10**30}, "min_tokens"),
        ({"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        ({"messages": HELLO, "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}]}, "messages.0.tool_calls.0.function.name"),
    ],
)
def test_the_field_at_fault_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"user": "\\ud800"}',
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"user": "\x00"}',
    ],
    ids=["empty", "cut", "not UTF-8", "null", "list", "string", "NaN", "infinity", "deep", "lone surrogate", "huge number", "control"],
)
def test_what_is_no_json_object_is_a_400(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(data)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hello", ["Hello"]),
        ("", [""]),
        (["Hello", "there"], ["Hello", "there"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert _completion({"prompt": prompt}).prompt == prompts


@pytest.mark.parametrize("prompt", [5, [], [[]], ["a", 1], [1, True], [[1], "a"], [1.5], {"a": 1}, ["a"] * 1025])
def test_other_forms_of_prompt_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        _completion({"prompt": prompt})
    assert caught.value.param == "prompt"


def test_null_is_the_same_as_nothing() -> None:
    assert _chat({"messages": HELLO, "temperature": None, "stop": None, "n": None}) == _chat({"messages": HELLO})


def test_a_completion_has_sixteen_tokens_unless_told_otherwise() -> None:
    assert _completion({"prompt": "Hello"}).max_tokens == 16


def test_the_two_names_of_max_tokens_mean_the_same() -> None:
    assert _chat({"messages": HELLO, "max_completion_tokens": 7}).token_limit() == 7
    assert _chat({"messages": HELLO, "max_tokens": 7, "max_completion_tokens": 7}).token_limit() == 7
    with pytest.raises(InvalidRequestError):
        _chat({"messages": HELLO, "max_tokens": 7, "max_completion_tokens": 8}).token_limit()


def test_sampling_defaults_give_way_to_the_request() -> None:
    body = _chat({"messages": HELLO, "top_p": 0.5, "top_k": -1})
    params = body.sampling_params({"temperature": 0.2, "top_p": 0.9, "top_k": 40}, 100, None, None, None)
    assert (params.temperature, params.top_p, params.top_k) == (0.2, 0.5, 0)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(fates.CHAT)) | st.text(max_size=5), _JSON, max_size=5))
def test_any_json_object_is_either_valid_or_refused(body: dict[str, Any]) -> None:
    try:
        parsed = _chat(body)
        parsed.check_streaming()
        parsed.sampling_params({}, 100, parsed.token_limit(), parsed.wanted_logprobs(), parsed.prompt_logprobs)
    except (ApiError, InvalidRequestError):
        return
    assert parsed.messages


@pytest.mark.parametrize("room", [1, 15, 16, 17, 100])
def test_the_default_of_max_tokens_gives_way_to_the_room_but_not_a_number_that_was_asked_for(room: int) -> None:
    for body, expected in (({"prompt": "a"}, min(16, room)), ({"prompt": "a", "max_tokens": 16}, 16)):
        request = _completion(body)
        params = request.sampling_params({}, 100, request.max_tokens, None, None)
        assert request.for_prompt(params, room).max_tokens == expected


@pytest.mark.parametrize("seed", [-(2**63), 2**63, 2**64 - 1])
def test_a_seed_has_64_bits_signed_or_not(seed: int) -> None:
    assert _chat({"messages": HELLO, "seed": seed}).sampling_params({}, 100, None, None, None).seed == seed

"""One heavy request must not hold up the others: it is refused by its counts, or worked on beside the event loop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import RunningServer

from engine.loader import resolve_model
from server.errors import ApiError
from server.limits import MAX_MESSAGES, MAX_STOP_TOKEN_IDS, MAX_TOKEN_IDS, MAX_VALUES, check_structure
from server.protocol import fates
from server.protocol.body import parse_body
from server.protocol.chat import ChatCompletionRequest
from server.protocol.tokenization import DetokenizeRequest

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello"}
# Seconds that nothing else may stand still. These requests once took 5 to 50; a crowded machine takes some time for anything.
BOUND = 1.5


@pytest.mark.parametrize(
    ("path", "body", "statuses"),
    [
        ("/v1/completions", {"prompt": "a" * 3_000_000}, {400}),
        ("/v1/completions", {"prompt": "hello world " * 6000}, {400}),
        ("/v1/completions", {"prompt": [1000] * 650_000}, {400}),
        ("/v1/completions", {"prompt": [["x"]] * 500_000}, {400}),
        ("/tokenize", {"prompt": "hello world " * 6000, "return_token_strs": True}, {200}),
        ("/detokenize", {"tokens": [1000] * 500_000}, {200}),
        ("/detokenize", {"tokens": ["x"] * 500_000}, {400}),
        (CHAT, {"messages": [1] * 1_000_000}, {400}),
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 100_000}, {400}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]}, {400}),
        (CHAT, {"messages": [HELLO], "stop_token_ids": ["x"] * 500_000}, {400}),
        (CHAT, {"messages": [HELLO], **{f"k{i}": 1 for i in range(200_000)}}, {400}),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_health_is_answered_while_a_heavy_request_is_worked_on(
    server: RunningServer, path: str, body: dict[str, Any], statuses: set[int]
) -> None:
    data = json.dumps(body).encode()
    answers: list[int] = []
    heavy = threading.Thread(target=lambda: answers.append(httpx.post(server.url + path, content=data, timeout=60).status_code))
    longest = 0.0
    with httpx.Client(base_url=server.url, timeout=60) as probe:
        probe.get("/health")
        heavy.start()
        while heavy.is_alive():
            began = time.monotonic()
            probe.get("/health")
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.01)
    assert answers[0] in statuses
    assert longest < BOUND


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [HELLO] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [1] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [HELLO], "stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids"),
        ({"messages": [HELLO], "chat_template_kwargs": {"a": [[1, 2]] * (MAX_VALUES // 2)}}, "chat_template_kwargs"),
        ({"messages": [HELLO], **{f"k{i}": 1 for i in range(300)}}, None),
    ],
)
def test_too_much_of_something_is_told_in_one_sentence(body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(json.dumps(body).encode(), ChatCompletionRequest, fates.CHAT, allow_unknown=False)
    assert caught.value.param == param
    assert len(str(caught.value)) < 200


@given(text=st.text(st.sampled_from(',[{"\\\\]}: é'), max_size=50), lists=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5))
def test_commas_and_brackets_within_texts_are_no_values(text: str, lists: list[list[int]]) -> None:
    body = {"a": text * 4000, "b": lists, text: [text]}
    check_structure(json.dumps(body, ensure_ascii=False).encode())
    with pytest.raises(ApiError):
        check_structure(json.dumps({**body, "c": [[]] * MAX_VALUES}).encode())


@pytest.mark.parametrize("unit", ["[],", "{},", '"",', '{"a":1},', "1,"])
def test_too_many_values_are_refused_before_they_are_decoded(unit: str) -> None:
    with pytest.raises(ApiError, match="too many values"):
        check_structure(('{"prompt": [' + unit * (MAX_TOKEN_IDS + MAX_VALUES + 1) + "1]}").encode())
    check_structure(('{"prompt": [' + unit * (MAX_VALUES // 2) + "1]}").encode())


def test_as_many_messages_as_may_be_are_read() -> None:
    data = json.dumps({"messages": [HELLO] * MAX_MESSAGES}).encode()
    assert len(parse_body(data, ChatCompletionRequest, fates.CHAT, allow_unknown=False).messages) == MAX_MESSAGES


def test_token_ids_that_are_none_are_told_once_for_all() -> None:
    with pytest.raises(Exception, match=r"^tokens: must be a list of token ids$"):
        parse_body(json.dumps({"tokens": ["x"] * 1000}).encode(), DetokenizeRequest, fates.DETOKENIZE, allow_unknown=False)


@pytest.mark.parametrize("what", ["encode", "decode"])
def test_other_threads_go_on_while_a_long_text_is_tokenized(what: str) -> None:
    tokenizer = resolve_model(None).tokenizer()
    text, ids = "hello world " * 50_000, [1000] * 500_000
    work: Callable[[], object] = (lambda: tokenizer.encode(text)) if what == "encode" else (lambda: tokenizer.decode(ids))
    worker = threading.Thread(target=work)
    began = last = time.monotonic()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < max(0.1, 0.5 * (last - began))


def test_a_long_text_has_the_same_tokens_as_its_parts() -> None:
    tokenizer = resolve_model(None).tokenizer()
    line = "The sea, the sea!\n"
    assert tokenizer.encode(line * 1000) == tokenizer.encode(line) * 1000
    assert tokenizer.decode(tokenizer.encode(line * 1000)) == line * 1000

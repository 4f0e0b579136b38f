"""Nothing that a client sends to /v1/responses or /v1/messages is a 500."""

from __future__ import annotations

from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_TEXT = st.text(max_size=4)
_JSON = st.none() | st.booleans() | st.integers(-3, 3) | _TEXT | st.just([]) | st.just({})


def _objects(optional: dict[str, Any] | None = None, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of these fields. Now and then one has a value that it should not have."""
    right = st.fixed_dictionaries(fields, optional=optional or {})
    wrong = st.tuples(right, st.sampled_from([*fields, *(optional or {})]), _JSON).map(lambda made: {**made[0], made[1]: made[2]})
    return st.integers(0, 15).flatmap(lambda roll: right if roll else wrong)


def _kind(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


_IDS = _kind("a", "b")
_NAMES = _kind("f", "g")
_SCHEMAS = st.sampled_from([{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "object"}, {"type": 5}])
_PARTS = _objects(type=_kind("input_text", "output_text"), text=_TEXT) | _objects(type=st.just("refusal"), refusal=_TEXT)
_MESSAGES = _objects(role=_kind("user", "assistant", "system", "developer"), content=_TEXT | st.lists(_PARTS, min_size=1, max_size=2))
_CALLS = _objects(type=st.just("function_call"), call_id=_IDS, name=_NAMES, arguments=_kind("{}", "{", '{"a": 1}'))
_ITEMS = (
    _MESSAGES
    | _CALLS
    | _objects(type=st.just("function_call_output"), call_id=_IDS, output=_TEXT)
    | _objects(type=st.just("reasoning"), id=_IDS, summary=st.just([]), optional={"content": st.just([])})
    | _objects(id=_kind("x", "msg_" + "0" * 36))
)
_RESPONSE = st.fixed_dictionaries(
    {"input": _TEXT | st.lists(_MESSAGES | _MESSAGES | _ITEMS, min_size=1, max_size=4)},
    optional={
        "instructions": _TEXT | st.lists(_MESSAGES, max_size=1),
        "text": st.just({}) | _objects(format=_objects(type=_kind("text", "json_object"))),
        "tools": st.lists(
            _objects(type=st.just("function"), name=_NAMES, optional={"parameters": _SCHEMAS, "description": _TEXT}), max_size=2
        ),
        "tool_choice": _kind("auto", "none") | _objects(type=st.just("function"), name=_NAMES),
        "truncation": _kind("auto", "disabled"),
        "include": st.lists(st.just("message.output_text.logprobs"), max_size=1),
        "metadata": st.dictionaries(_TEXT, _TEXT, max_size=2),
    },
)
_TURNS = _objects(
    role=st.just("user"),
    content=_TEXT
    | st.lists(
        _objects(type=st.just("text"), text=_TEXT) | _objects(type=st.just("tool_result"), tool_use_id=_IDS, content=_TEXT), max_size=2
    ),
) | _objects(
    role=st.just("assistant"),
    content=_TEXT
    | st.lists(
        _objects(type=st.just("text"), text=_TEXT)
        | _objects(type=st.just("thinking"), thinking=_TEXT)
        | _objects(type=st.just("tool_use"), id=_IDS, name=_NAMES, input=st.just({})),
        max_size=3,
    ),
)
_MESSAGE = st.fixed_dictionaries(
    {"messages": st.lists(_TURNS, min_size=1, max_size=4)},
    optional={
        "system": _TEXT | st.lists(_objects(type=st.just("text"), text=_TEXT), max_size=1),
        "tools": st.lists(_objects(name=_NAMES, input_schema=_SCHEMAS, optional={"description": _TEXT}), max_size=2),
        "tool_choice": _objects(
            type=_kind("auto", "none", "tool", "any"), optional={"name": _NAMES, "disable_parallel_tool_use": st.booleans()}
        ),
        "thinking": _objects(type=_kind("disabled", "adaptive", "enabled"), optional={"budget_tokens": st.just(1)}),
        "output_config": st.just({}) | _objects(effort=st.just("low")),
        "stop_sequences": st.lists(_TEXT, max_size=2),
        "metadata": _objects(user_id=_TEXT),
    },
)


@_SETTINGS
@given(body=_RESPONSE)
def test_no_response_request_is_a_500(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/v1/responses", json={**body, "max_output_tokens": 1})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@_SETTINGS
@given(body=_MESSAGE)
def test_no_message_request_is_a_500(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/v1/messages", json={**body, "max_tokens": 2})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert set(answer.json()["error"]) - {"details"} == {"type", "message"}

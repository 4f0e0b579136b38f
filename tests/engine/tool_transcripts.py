"""What models of each family write when they call tools, and what it means."""

from __future__ import annotations

from typing import NamedTuple


class Transcript(NamedTuple):
    family: str
    text: str
    content: str
    calls: list[tuple[str, str]]  # names and arguments, as they were written


_WEATHER = ("get_weather", '{"city": "Paris", "days": [1, 2.5e3]}')
_TIME = ("time", "{}")

WHOLE = [
    Transcript(
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2.5e3]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        "Let me see.",
        [_WEATHER, _TIME],
    ),
    Transcript(
        "hermes",
        '<tool_call>{"arguments": {"s": "a \\"}\\u00e9</tool_call>"}, "name": "time"}</tool_call> Done.',
        " Done.",
        [("time", '{"s": "a \\"}\\u00e9</tool_call>"}')],
    ),
    Transcript("hermes", '<tool_call>{"name": "time", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("time", '{"a": 1}')]),
    Transcript("hermes", '<tool_call>{"name": "time"}</tool_call>', "", [_TIME]),
    Transcript(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": [1, 2.5e3]}}; {"name": "time", "parameters": {}}',
        "",
        [_WEATHER, _TIME],
    ),
    Transcript(
        "llama3_json", '<|python_tag|>{"type": "function", "name": "time", "parameters": {"a": null}}', "", [("time", '{"a": null}')]
    ),
    Transcript(
        "pythonic",
        "[get_weather(city='Paris', days=[1, -2, {'a': True}]), time()]",
        "",
        [("get_weather", '{"city": "Paris", "days": [1, -2, {"a": true}]}'), _TIME],
    ),
    Transcript("pythonic", '<|python_start|>[time(x="a, b)\\"", y=null)]<|python_end|>', "", [("time", '{"x": "a, b)\\"", "y": null}')]),
    Transcript(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2.5e3]}, "id": "abcdefghi"}, '
        '{"name": "time", "arguments": {}}]',
        "",
        [_WEATHER, _TIME],
    ),
    Transcript(
        "mistral",
        'One moment.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": [1, 2.5e3]}[TOOL_CALLS]time[CALL_ID]abcdefghi[ARGS]{}',
        "One moment.",
        [_WEATHER, _TIME],
    ),
    Transcript("mistral", '[TOOL_CALLS]time{"a": 1}', "", [("time", '{"a": 1}')]),
    Transcript(
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris", "days": [1, 2.5e3]}\n```'
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [_WEATHER, _TIME],
    ),
    Transcript(
        "deepseek_v3",
        "I ask. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris", "days": [1, 2.5e3]}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I ask.",
        [_WEATHER, _TIME],
    ),
    Transcript(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2.5e3]}}, {"name": "time", "arguments": {}}]',
        "",
        [_WEATHER, _TIME],
    ),
    Transcript("granite", '<tool_call>[{"name": "time", "arguments": {}}]', "", [_TIME]),
    Transcript(
        "phi4_mini",
        '<|tool_call|>[{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2.5e3]}}}]'
        "<|/tool_call|>",
        "",
        [_WEATHER],
    ),
    Transcript(
        "phi4_mini",
        '<|tool_call|>{"name": "time", "arguments": {}}<|/tool_call|>\n<|tool_call|>{"name": "time", "arguments": {"a": 1}}<|/tool_call|>',
        "",
        [_TIME, ("time", '{"a": 1}')],
    ),
    Transcript("phi4_mini", 'functools[{"name": "time", "arguments": {}}]', "", [_TIME]),
]
"""As their makers document it."""

BROKEN = [
    # Cut off by max_tokens before and after it is plain that it is a call.
    Transcript("hermes", '<tool_call>\n{"name": "get_w', '<tool_call>\n{"name": "get_w', []),
    Transcript("hermes", '<tool_call>\n{"name": "time", "arguments": {"a": "b', "", [("time", '{"a": "b')]),
    Transcript("llama3_json", '{"name": "time", "parameters": {"a": [', "", [("time", '{"a": [')]),
    Transcript("pythonic", "[time(a=1, b='x", "", [("time", '{"a": 1')]),
    Transcript("mistral", '[TOOL_CALLS]time[ARGS]{"a"', "", [("time", '{"a"')]),
    Transcript("mistral", "[TOOL_CALLS] [{", "[TOOL_CALLS] [{", []),
    Transcript("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time", []),
    Transcript("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{"a', "", [("time", '{"a')]),
    Transcript("granite", '<|tool_call|>[{"name": "time", "arguments": {"a": 1}}, {"na', ' {"na', [("time", '{"a": 1}')]),
    Transcript("phi4_mini", '<|tool_call|>[{"name": "time", "arguments": {"a": tru', "", [("time", '{"a": tru')]),
    # What only looks like a call.
    Transcript("hermes", "Write <tool_call> and </tool_call>.", "Write <tool_call> and </tool_call>.", []),
    Transcript("hermes", 'a <tool_call>{"city": "Paris"}</tool_call>', 'a <tool_call>{"city": "Paris"}</tool_call>', []),
    Transcript("hermes", "x < y <tool <tool_cal", "x < y <tool <tool_cal", []),
    Transcript("llama3_json", ' {"name": "Ann", "parameters": {}} is JSON. ', ' {"name": "Ann", "parameters": {}} is JSON. ', []),
    Transcript("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    Transcript("pythonic", "[time(zone) is a call, time is money]", "[time(zone) is a call, time is money]", []),
    Transcript("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    Transcript("mistral", "[TOOL_CALLS] are markers", "[TOOL_CALLS] are markers", []),
    Transcript("granite", "<|tool_call|>nothing", "<|tool_call|>nothing", []),
    Transcript("phi4_mini", "functools is a module", "functools is a module", []),
    # Almost a call.
    Transcript("hermes", '<tool_call>{"name": "time", "arguments": {"a": 1}</tool_call> ok', " ok", [("time", '{"a": 1}')]),
    Transcript("hermes", '<tool_call>{"name": "time", "arguments": {"a": 1}}}</tool_call> ok', " ok", [("time", '{"a": 1}')]),
    Transcript("hermes", '<tool_call>{"name": "time", "arguments": {"a": oops}}</tool_call> ok', " ok", [("time", '{"a": oops}}')]),
    Transcript("llama3_json", '{"name": "time", "parameters": {}}; and text', "; and text", [_TIME]),
]
"""Calls that break off, and what is none."""

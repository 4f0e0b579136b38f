"""The same for the other shapes of conversations: /v1/responses and /v1/messages."""

from __future__ import annotations

from typing import Any

from corpus import HELLO, Attack, post, raw

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


def responses() -> list[Attack]:
    """Responses that nobody could make."""
    wrong: dict[str, list[Any]] = {
        "input": [5, True, {}, [], "", [5], [None], [[]], [{"role": "root", "content": "x"}], [{"type": "message"}], [{"type": "smell"}]],
        "instructions": [5, {}, True, [5]],
        "previous_response_id": [5, {}, [], "resp_nothing", "../../etc/passwd", "' OR 1=1 --", "x" * 100_000, "a\u0000b"],
        "store": ["yes", 1, {}],
        "background": ["yes", 1],
        "stream": ["yes", 1, {}],
        "metadata": [5, "x", [], {"a": 5}, {"a": {}}, {"a" * 65: "x"}, {"a": "x" * 513}, {str(i): "x" for i in range(17)}],
        "include": ["x", 5, {}, ["everything"], [5]],
        "max_output_tokens": [0, -1, "5", 1.5, True, 10**30, []],
        "top_logprobs": [5, -1, 21, "5", True],
        "temperature": ["hot", -1, True, 1e308, []],
        "top_p": [0, 2, "x", []],
        "text": [5, "x", [], {"format": 5}, {"format": {"type": "yaml"}}, {"format": {}}, {"verbosity": "loud"}, {"colour": "blue"}],
        "reasoning": [5, "high", [], {"effort": "wrong"}, {"summary": 5}],
        "tools": ["x", 5, {}, [None], [{}], [{"type": "shell"}], [{"type": "function"}], [{"type": "function", "name": 5}]],
        "tool_choice": ["wrong", 5, [], {}, {"type": "function"}, {"type": "function", "name": "nobody"}],
        "truncation": ["some", 5],
        "stream_options": [{}, 5, {"include_usage": True}],
        "user": [5, [], {}],
        "stop": [[""], "", [5], {}, ["x"] * 65, "x" * 2000],
        "model": ["gpt-5", 5, ""],
        "colour": ["blue"],
        "messages": [HELLO],
        "conversation": ["x"],
        "prompt": [{"id": "x"}],
    }
    found = [
        post(f"responses: {name}={value!r}"[:80], RESPONSES, {"input": "Hello", "max_output_tokens": 1, name: value}, 400, 404)
        for name, values in wrong.items()
        for value in values
    ]
    found.append(post("responses: no input", RESPONSES, {}, 400))
    found.append(post("responses: in the background, but not stored", RESPONSES, {"input": "x", "background": True, "store": False}, 400))
    ids = ["nothing", "..%2f..%2fetc%2fpasswd", "%00", "'%20OR%201=1", "x" * 5000, "%ff", "resp_" + "0" * 32]
    for one in ids:
        for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            line = f"{method} {RESPONSES}/{one}{end} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            found.append(raw(f"{method} response {one[:30]}{end}", line.encode(), 400, 404))
    for query in ("limit=0", "limit=x", "order=sideways", "after=" + "x" * 1000, "stream=maybe", "starting_after=-1"):
        line = f"GET {RESPONSES}/nothing/input_items?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        found.append(raw(f"input items with {query[:30]}", line.encode(), 400, 404))
    return found


def messages() -> list[Attack]:
    """Messages in Anthropic's shape that nobody could send."""
    wrong: dict[str, list[Any]] = {
        "messages": [5, "x", {}, [], [5], [{}], [{"role": "root", "content": "x"}], [{"role": "user", "content": 5}]],
        "max_tokens": [0, -1, "5", 1.5, True, 10**30, []],
        "system": [5, {}, [5], [{"type": "image"}]],
        "temperature": ["hot", -1, True, []],
        "top_p": [0, 2, "x"],
        "top_k": [-5, "x", 1.5],
        "stop_sequences": ["x", [5], [""], {}, ["x" * 2000], ["x"] * 65],
        "stream": ["yes", 1],
        "tools": ["x", 5, {}, [None], [{}], [{"name": "a"}], [{"name": 5, "input_schema": {}}], [{"name": "a", "input_schema": "x"}]],
        "tool_choice": ["auto", 5, {}, {"type": "wrong"}, {"type": "tool"}, {"type": "tool", "name": "nobody"}],
        "thinking": ["x", 5, {}, {"type": "wrong"}, {"type": "enabled", "budget_tokens": 10**6}, {"type": "enabled", "budget_tokens": 0}],
        "metadata": [5, "x", {"user_id": 5}, {"colour": "blue"}],
        "output_config": [5, {"effort": "wrong"}, {"format": {}}],
        "model": ["claude", 5, ""],
        "colour": ["blue"],
    }
    blocks: list[Any] = [
        {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}},
        {"type": "document", "source": {"type": "file", "file_id": "../../etc/passwd"}},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": "tool_use", "id": "1", "name": "a", "input": "x"},
        {"type": "tool_result"},
        {"type": "smell"},
        {},
        None,
        "x",
    ]
    wrong["messages"] += [[{"role": "user", "content": [block]}] for block in blocks]
    found = []
    for path, base in ((MESSAGES, {"messages": HELLO, "max_tokens": 1}), (f"{MESSAGES}/count_tokens", {"messages": HELLO})):
        for name, values in wrong.items():
            if name in ("messages", "system", "tools", "model", "colour") or path == MESSAGES:
                found += [post(f"{path}: {name}={value!r}"[:80], path, {**base, name: value}, 400, 404) for value in values]
    found.append(post("messages without max_tokens", MESSAGES, {"messages": HELLO}, 400))
    return found

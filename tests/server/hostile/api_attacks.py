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


def embeddings() -> list[Attack]:
    """Texts of which no vectors can be made."""
    inputs: list[Any] = [None, "", [], [""], 5, {}, True, [5, "x"], [None], [[]], [[5], "x"], [-1], [10**9], [10**30], ["a"] * 5000]
    found = [post(f"embeddings: input={value!r}"[:80], "/v1/embeddings", {"input": value}, 400) for value in inputs]
    found.append(post("embeddings: a long text", "/v1/embeddings", {"input": "hello " * 100_000}, 400))
    more: list[dict[str, Any]] = [
        {"dimensions": 0},
        {"dimensions": -1},
        {"dimensions": 10**9},
        {"dimensions": "5"},
        {"encoding_format": "hex"},
        {"encoding_format": 5},
        {"model": "nobody"},
        {"user": 5},
        {"colour": "blue"},
        {"messages": HELLO},
    ]
    found += [post(f"embeddings with {one}", "/v1/embeddings", {"input": "a", **one}, 400, 404) for one in more]
    pairs: list[dict[str, Any]] = [
        {},
        {"text_1": "a"},
        {"text_1": 5, "text_2": "a"},
        {"text_1": ["a"] * 3, "text_2": ["a"] * 2},
        {"text_1": "a", "text_2": []},
        {"text_1": "", "text_2": ""},
        {"text_1": "a", "text_2": ["b"] * 5000},
    ]
    found += [post(f"score {pair}"[:60], "/v1/score", pair, 400) for pair in pairs]
    ranks: list[dict[str, Any]] = [
        {},
        {"query": "a"},
        {"query": "a", "documents": []},
        {"query": 5, "documents": ["a"]},
        {"query": "a", "documents": [5]},
        {"query": "a", "documents": ["a"], "top_n": -1},
        {"query": "a", "documents": ["a"], "top_n": "x"},
        {"query": "a", "documents": ["a"] * 5000},
    ]
    return found + [post(f"rerank {rank}"[:60], "/v1/rerank", rank, 400) for rank in ranks]


def files() -> list[Attack]:
    """Files and batches on a server that keeps none."""
    found = []
    for path in ("/v1/files", "/v1/batches", "/v1/files/..%2f..%2fetc%2fpasswd", "/v1/files/x/content", "/v1/batches/%00", "/v1/files/%ff"):
        for method in ("GET", "POST", "DELETE"):
            line = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            found.append(raw(f"{method} {path}", line.encode()))
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../etc/passwd"\r\n\r\n{}\r\n--x--\r\n'
    kind = b"Content-Type: multipart/form-data; boundary=x\r\n"
    found.append(post("a file whose name climbs", "/v1/files", form, headers=kind))
    found.append(post("a form without end", "/v1/files", form[:-10], headers=kind))
    found.append(post("a form without boundary", "/v1/files", form, headers=b"Content-Type: multipart/form-data\r\n"))
    fields = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 5000
    found.append(post("a form of 5,000 fields", "/v1/files", fields, headers=kind))
    return found

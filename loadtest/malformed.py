"""Requests that must be refused with a reason, as (path, body, headers)."""

from __future__ import annotations

from typing import Any

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_HELLO = {"role": "user", "content": "Hello"}

MALFORMED: list[tuple[str, Any, dict[str, str]]] = [
    (_CHAT, b"", {}),
    (_CHAT, b"{", {}),
    (_CHAT, b'{"messages": [\xff\xfe]}', {}),
    (_CHAT, b"[" * 5000, {}),
    (_CHAT, b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}", {}),
    (_CHAT, [], {}),
    (_CHAT, {}, {}),
    (_CHAT, {"messages": "Hello"}, {}),
    (_CHAT, {"messages": []}, {}),
    (_CHAT, {"messages": [{"role": "nobody", "content": "x"}]}, {}),
    (_CHAT, {"messages": [_HELLO] * 3000}, {}),
    (_CHAT, {"messages": [_HELLO], "temperature": "hot"}, {}),
    (_CHAT, {"messages": [_HELLO], "temperature": 1e400}, {}),
    (_CHAT, {"messages": [_HELLO], "n": 0}, {}),
    (_CHAT, {"messages": [_HELLO], "n": 100_000}, {}),
    (_CHAT, {"messages": [_HELLO], "max_tokens": -1}, {}),
    (_CHAT, {"messages": [_HELLO], "logit_bias": {"x": 1}}, {}),
    (_CHAT, {"messages": [_HELLO], "stop": ["x"] * 1000}, {}),
    (_CHAT, {"messages": [_HELLO], "no_such_parameter": 1}, {}),
    (_CHAT, {"messages": [_HELLO], "model": "no-such-model"}, {}),
    (_CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}, {}),
    (_CHAT, {"messages": [_HELLO]}, {"Content-Type": "text/plain"}),
    (_COMPLETIONS, {"prompt": [1, 2, "x"]}, {}),
    (_COMPLETIONS, {"prompt": [10**9]}, {}),
    (_COMPLETIONS, {"prompt": ""}, {}),
    (_COMPLETIONS, {"prompt": "x", "timeout": -1}, {}),
    (_COMPLETIONS, {"prompt": ["x"] * 5000}, {}),
    ("/v1/no/such/path", {}, {}),
    ("/v1/models", {}, {}),
    (_CHAT, b"{}", {"Content-Length": "-5"}),
    (_CHAT, b"{}", {"Transfer-Encoding": "chunked", "Content-Length": "2"}),
]

"""Random requests against a running server: `python -m loadtest.fuzz [--url URL] [--seconds 60] [--seed 1] [--key KEY]`.

Half of them are good requests with bytes changed anywhere; half are whole requests with values of their JSON replaced, parameters added
and texts spliced. Ends with a verdict and status 1 if anything was answered with 500 or above, if a refusal took more than a second, or
if the server is not healthy at the end. The same seed sends the same requests, and a request at fault is printed with its bytes.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import socket
import sys
import time
import urllib.request
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

LONGEST_REFUSAL = 1.0  # seconds
PATIENCE = 20.0  # seconds for an answer, which may be a generated one

_HELLO = {"role": "user", "content": "Hello"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}
MODEL = "the first model"  # stands for its name
# `timeout` ends what a mutation makes long.
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [_HELLO], "max_tokens": 2, "timeout": 2}),
    (
        "/v1/chat/completions",
        {"messages": [_HELLO], "max_tokens": 2, "timeout": 2, "stream": True, "stream_options": {"include_usage": True}},
    ),
    ("/v1/chat/completions", {"messages": [_HELLO], "max_tokens": 2, "timeout": 2, "tools": [_TOOL], "tool_choice": "auto"}),
    ("/v1/chat/completions", {"messages": [_HELLO], "max_tokens": 2, "timeout": 2, "response_format": _SCHEMA}),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "timeout": 2, "n": 2, "logprobs": 1, "echo": True}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2, "timeout": 2, "logit_bias": {"5": 1}, "stop": ["x"], "seed": 1}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
    ("/v1/messages", {"model": MODEL, "messages": [_HELLO], "max_tokens": 2}),
    ("/tokenize", {"messages": [_HELLO], "chat_template_kwargs": {"a": 1}}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
_VALUES: list[Any] = [
    *(2, 0.5, 3, "auto", "Hello", ["x"], [5], {"5": 1}, [_HELLO], [_TOOL], _SCHEMA, {"type": "json_object"}, {"a": 1}),
    *(None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, -1e308, 1e-320, ""),
    *("x", "\u0000", "\ud83e\udd91", "{{ 7 * 7 }}", "../../etc/passwd", "x" * 5000, "<|im_end|>", "(", "5", [], {}, [[]], [{}], [None]),
    *({"": ""}, {"$ref": "#"}, {"type": "object"}, [1] * 2000, [_HELLO] * 50, {"role": "tool"}, {"type": "text", "text": "x"}, [[[[1]]]]),
]
_WORDS = """
messages prompt max_tokens n best_of temperature top_p top_k min_p stop stop_token_ids seed logit_bias logprobs top_logprobs
stream stream_options tools tool_choice response_format structured_outputs user cache_salt priority bad_words allowed_token_ids
echo prompt_logprobs use_beam_search length_penalty early_stopping repetition_penalty repetition_detection truncate_prompt_tokens
chat_template chat_template_kwargs add_generation_prompt continue_final_message min_tokens ignore_eos input instructions system
previous_response_id store metadata thinking reasoning text background role content name type function arguments tool_calls
"""
_NAMES = _WORDS.split()
_PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\x00", b"\xff", b" ", b"\t", b":", b",", b'"', b"{", b"[", b"\\u0000", b"\\ud800", b"%00", b"../"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n", b"HTTP/1.1"),
    *(b"Connection: keep-alive\r\n", b"Host: y\r\n", b"0\r\n\r\n", b"ffffffff\r\n", b"99999999999999999999", b"NaN", b"1e999", b"-0"),
    *(b"Origin: null\r\n", b"X-Request-Id: \x01\r\n", b"Authorization: Bearer \xff\r\n", b"Content-Encoding: gzip\r\n"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--key", default="")
    args = parser.parse_args()
    source = random.Random(args.seed)
    listing = urllib.request.Request(args.url + "/v1/models", headers={"x-api-key": args.key})
    with urllib.request.urlopen(listing, timeout=10) as models:
        model = json.load(models)["data"][0]["id"]
    answers: Counter[str] = Counter()
    at_fault: list[str] = []
    slowest, end = 0.0, time.monotonic() + args.seconds
    while time.monotonic() < end:
        data = request(source, args.key, model)
        began = time.monotonic()
        status = send(args.url, data)
        took = time.monotonic() - began
        answers[status] += 1
        if status.startswith("4") and status != "408":
            slowest = max(slowest, took)
        if status.startswith("5") or (status.startswith("4") and status != "408" and took > LONGEST_REFUSAL):
            at_fault.append(f"{status} after {took:.2f} s: {data[:2000]!r}")
            print(at_fault[-1])
    with urllib.request.urlopen(args.url + "/health", timeout=10) as health:
        healthy = health.status == 200
    counts = ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))
    print(f"{sum(answers.values())} requests: {counts}; slowest refusal {slowest:.3f} s; healthy: {healthy}; at fault: {len(at_fault)}")
    sys.exit(1 if at_fault or not healthy else 0)


def request(source: random.Random, key: str, model: str) -> bytes:
    """The bytes of one request."""
    path, body = copy.deepcopy(source.choice(SEEDS))
    if "model" in body:
        body["model"] = model
    if spoil_bytes := source.random() < 0.5:
        content = json.dumps(body).encode()
    else:
        for _ in range(source.randint(1, 3)):
            spoil_json(source, body)
        content = json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{authorization}"
    if spoil_bytes and source.random() < 0.3:
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(content):x}\r\n".encode() + content + b"\r\n0\r\n\r\n"
    elif spoil_bytes and source.random() < 0.5:
        content = spoil(source, content)
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    else:
        data = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    return spoil(source, data) if spoil_bytes else data


def spoil_json(source: random.Random, body: dict[str, Any]) -> None:
    """Change one value somewhere in a body."""
    here: Any = body
    while True:
        if isinstance(here, dict) and (not here or source.random() < 0.2):
            here[source.choice(_NAMES)] = copy.deepcopy(source.choice(_VALUES))
            return
        if isinstance(here, list) and (not here or source.random() < 0.2):
            here.insert(source.randint(0, len(here)), copy.deepcopy(source.choice(_VALUES)))
            return
        place = source.choice(list(here)) if isinstance(here, dict) else source.randrange(len(here))
        if not isinstance(here[place], dict | list) or source.random() < 0.3:
            # Mostly of the same type, to get past the first check.
            alike = [value for value in _VALUES if type(value) is type(here[place])]
            here[place] = copy.deepcopy(source.choice(alike if source.random() < 0.7 else _VALUES))
            return
        here = here[place]


def spoil(source: random.Random, data: bytes) -> bytes:
    """Change a few bytes anywhere."""
    for _ in range(source.randint(1, 4)):
        place = source.randint(0, len(data))
        match source.randrange(5):
            case 0:
                data = data[:place] + source.randbytes(1) + data[place + 1 :]
            case 1:
                data = data[:place] + data[place + source.randint(1, 20) :]
            case 2:
                data = data[:place] + data[max(0, place - source.randint(1, 40)) : place] * source.randint(1, 3) + data[place:]
            case 3:
                data = data[:place] + source.choice(_PIECES) + data[place:]
            case _:
                data = (
                    data[:place] if source.random() < 0.2 else data[:place] + source.choice(_PIECES) * source.randint(1, 50) + data[place:]
                )
    return data


def send(url: str, data: bytes) -> str:
    """The status that is answered, or how there was no answer."""
    target = urlsplit(url)
    received = b""
    with socket.create_connection((target.hostname, target.port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                received += part
                if len(received) > 1 << 20:
                    break
        except TimeoutError:
            return "no end"
        except OSError:
            pass
    received = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return received[9:12].decode("latin-1") if received.startswith(b"HTTP/1.1 ") else "no answer"


if __name__ == "__main__":
    main()

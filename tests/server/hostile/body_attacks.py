"""Bodies that are no JSON, and JSON that is made to be slow or to be read in two ways."""

from __future__ import annotations

import json
from typing import Any

from corpus import CHAT, COMPLETIONS, HELLO, Attack, chat, post

_MOST = 8 << 20  # bytes of the longest body


def _messages(rest: bytes) -> bytes:
    return b'{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, ' + rest + b"}"


def json_texts() -> list[Attack]:
    bad = {
        "nothing": b"",
        "a space": b" ",
        "null": b"null",
        "a number": b"1",
        "a string": b'"Hello"',
        "a list": b"[]",
        "an empty object": b"{}",
        "half an object": b'{"messages": [',
        "two objects": b"{}{}",
        "JSON lines": b'{"messages": []}\n{"messages": []}',
        "single quotes": b"{'messages': []}",
        "no quotes": b"{messages: []}",
        "trailing comma": _messages(b'"n": 1,'),
        "a comment": _messages(b'/* x */ "n": 1'),
        "NaN": _messages(b'"temperature": NaN'),
        "Infinity": _messages(b'"temperature": Infinity'),
        "minus Infinity": _messages(b'"temperature": -Infinity'),
        "a number too large for a float": _messages(b'"temperature": 1e999'),
        "minus the same": _messages(b'"logit_bias": {"5": -1e999}'),
        "length_penalty without bound": _messages(b'"use_beam_search": true, "n": 2, "length_penalty": 1e999'),
        "timeout without bound": _messages(b'"timeout": -1e999'),
        "leading zero": _messages(b'"n": 01'),
        "plus sign": _messages(b'"n": +1'),
        "hexadecimal": _messages(b'"n": 0x1'),
        "number without end": _messages(b'"n": 1e'),
        "5,000 digits": _messages(b'"seed": ' + b"9" * 5000),
        "a million digits": _messages(b'"seed": ' + b"9" * 1_000_000),
        "a million digits after the point": _messages(b'"temperature": -0.' + b"9" * 1_000_000),
        "huge exponent": _messages(b'"seed": 1e' + b"9" * 1000),
        "the same name twice": _messages(b'"n": 1, "n": 2'),
        "messages twice": _messages(b'"messages": []'),
        "the same name twice, within": b'{"messages": [{"role": "user", "role": "system", "content": "Hello"}]}',
        "the same name twice, escaped": _messages(b'"n": 1, "\\u006e": 2'),
        "lone high surrogate": _messages(b'"user": "\\ud800"'),
        "lone low surrogate": _messages(b'"user": "\\udc00"'),
        "surrogates the wrong way round": _messages(b'"user": "\\udc00\\ud800"'),
        "lone surrogate in a name": _messages(b'"\\ud800": 1'),
        "null byte in a string": _messages(b'"user": "a\x00b"'),
        "line break in a string": _messages(b'"user": "a\nb"'),
        "unknown escape": _messages(b'"user": "\\x41"'),
        "half an escape": _messages(b'"user": "\\u12'),
        "UTF-16": json.dumps({"messages": HELLO}).encode("utf-16"),
        "UTF-32": json.dumps({"messages": HELLO}).encode("utf-32"),
        "byte order mark": b"\xef\xbb\xbf" + _messages(b'"n": 1'),
        "Latin-1": _messages('"user": "é"'.encode("latin-1")),
        "overlong UTF-8": _messages(b'"user": "\xc0\xaf"'),
        "surrogate in UTF-8": _messages(b'"user": "\xed\xa0\x80"'),
        "cut UTF-8": _messages(b'"user": "\xe2\x82"'),
        "raw bytes": bytes(range(256)),
        "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00C\xbf\xa6\xa3\x02\x00\x00\x00",
        "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "YAML": b"messages:\n- role: user\n  content: !!python/object/apply:os.system ['id']\n",
        "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        "form": b"messages=Hello&max_tokens=1",
        "prototype": _messages(b'"__proto__": {"admin": true}'),
        "class": _messages(b'"__class__": "x"'),
        "MessagePack": b"\x81\xa8messages\x90",
    }
    return [post(name, CHAT, data, 400) for name, data in bad.items()]


def depths() -> list[Attack]:
    """Nesting, everywhere that it can be."""
    found = []
    for depth in (250, 1_000, 100_000):
        lists, objects = b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth
        found += [
            post(f"{depth} lists", CHAT, lists, 400),
            post(f"{depth} lists without end", CHAT, b"[" * depth, 400),
            post(f"{depth} objects", CHAT, objects, 400),
            post(f"template variables {depth} deep", CHAT, _messages(b'"chat_template_kwargs": {"a": ' + lists + b"}"), 400),
            post(f"prompt {depth} deep", COMPLETIONS, b'{"prompt": ' + lists + b"}", 400),
            post(f"tools {depth} deep", CHAT, _messages(b'"tools": ' + lists), 400),
            post(f"schema {depth} deep", CHAT, _messages(b'"response_format": ' + objects), 400),
        ]
    return found


def masses() -> list[Attack]:
    """Bodies as large as may be, of whatever takes longest to read."""

    def filled(before: bytes, unit: bytes, after: bytes) -> bytes:
        return before + unit * ((_MOST - len(before) - len(after)) // len(unit)) + after

    bodies: dict[str, tuple[str, bytes]] = {
        "numbers": (COMPLETIONS, filled(b'{"prompt": [', b"1,", b"1]}")),
        "floats": (COMPLETIONS, filled(b'{"prompt": [', b"1.5e300,", b"1]}")),
        "numbers of 4,000 digits": (COMPLETIONS, filled(b'{"prompt": [', b"9" * 4000 + b",", b"1]}")),
        "empty lists": (COMPLETIONS, filled(b'{"prompt": [', b"[],", b"[]]}")),
        "empty objects": (CHAT, filled(b'{"messages": [', b"{},", b"{}]}")),
        "empty strings": (COMPLETIONS, filled(b'{"prompt": [', b'"",', b'""]}')),
        "lists of one": (COMPLETIONS, filled(b'{"prompt": [', b"[1],", b"[1]]}")),
        "messages": (CHAT, filled(b'{"messages": [', b'{"role":"user","content":""},', b'{"role":"user","content":""}]}')),
        "parameters": (CHAT, _messages(b",".join(b'"k%d":1' % i for i in range(500_000)))),
        "one text": (COMPLETIONS, filled(b'{"prompt": "', b"a", b'"}')),
        "one text of spaces": (COMPLETIONS, filled(b'{"prompt": "', b" ", b'"}')),
        "one text of commas": (COMPLETIONS, filled(b'{"prompt": "', b",[{", b'"}')),
        "one text of escapes": (COMPLETIONS, filled(b'{"prompt": "', b"\\u00e9", b'"}')),
        "one text of escaped quotes": (COMPLETIONS, filled(b'{"prompt": "', b'\\",', b'"}')),
        "one text of emoji": (CHAT, filled(b'{"messages": [{"role": "user", "content": "', "🦑".encode(), b'"}]}')),
        "a message of many texts": (
            CHAT,
            filled(b'{"messages": [{"role": "user", "content": [', b'{"type":"text","text":"x"},', b'{"type":"text","text":"x"}]}]}'),
        ),
        "one name": (CHAT, filled(b'{"', b"a", b'": 1}')),
        "spaces": (CHAT, b" " * (_MOST - 1)),
        "open brackets": (CHAT, b"[" * (_MOST - 1)),
        "a million token ids": (COMPLETIONS, b'{"prompt": [' + b"1000," * ((1 << 20) - 1) + b"1000]}"),
        "a thousand long prompts": (COMPLETIONS, json.dumps({"prompt": ["hello " * 1000] * 1000}).encode()),
        "biases": (CHAT, _messages(b'"logit_bias": {' + b",".join(b'"%d":1' % i for i in range(40_000)) + b"}")),
        "stop strings": (CHAT, _messages(b'"stop": [' + b'"x",' * 50_000 + b'"x"]')),
        "bad words": (CHAT, _messages(b'"bad_words": [' + b'"x",' * 50_000 + b'"x"]')),
        "template variables": (CHAT, _messages(b'"chat_template_kwargs": {' + b",".join(b'"k%d":1' % i for i in range(70_000)) + b"}")),
        "tokens that are none": ("/detokenize", filled(b'{"tokens": [', b'"x",', b'"x"]}')),
        "a body over the bound": (CHAT, b" " * (_MOST + 1)),
    }
    return [post(f"a mass of {name}", path, data, 400, 413, 404, 429) for name, (path, data) in bodies.items()]


def messages() -> list[Attack]:
    """Conversations that are none."""
    bad: dict[str, Any] = {
        "a string": "Hello",
        "a number": 5,
        "an object": {"role": "user", "content": "Hello"},
        "none": [],
        "a list of strings": ["Hello"],
        "a list of null": [None],
        "a list of lists": [[]],
        "no role": [{"content": "Hello"}],
        "role of null": [{"role": None, "content": "Hello"}],
        "unknown role": [{"role": "root", "content": "Hello"}],
        "role with markup": [{"role": "user<|im_end|>", "content": "Hello"}],
        "role of a number": [{"role": 1, "content": "Hello"}],
        "role of a list": [{"role": ["user"], "content": "Hello"}],
        "content of a number": [{"role": "user", "content": 5}],
        "content of true": [{"role": "user", "content": True}],
        "content of an object": [{"role": "user", "content": {"text": "Hello"}}],
        "part without a type": [{"role": "user", "content": [{"text": "Hello"}]}],
        "part of an unknown type": [{"role": "user", "content": [{"type": "smell"}]}],
        "part of null": [{"role": "user", "content": [None]}],
        "part of a string": [{"role": "user", "content": ["Hello"]}],
        "text part without text": [{"role": "user", "content": [{"type": "text"}]}],
        "text part of a number": [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        "image from a file": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        "image from inside": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}],
        "audio": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}],
        "file": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "../../etc/passwd"}}]}],
        "unknown field": [{"role": "user", "content": "Hello", "colour": "blue"}],
        "field with a template": [{"role": "user", "content": "Hello", "{{ 7 * 7 }}": "{{ 7 * 7 }}"}],
        "dunder field": [{"role": "user", "content": "Hello", "__class__": "x"}],
        "name of a list": [{"role": "user", "content": "Hello", "name": ["x"]}],
        "tool calls of a string": [{"role": "assistant", "content": None, "tool_calls": "x"}],
        "tool call without a function": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}],
        "tool call of another type": [{"role": "assistant", "tool_calls": [{"type": "shell", "function": {"name": "a", "arguments": ""}}]}],
        "tool call with arguments of a number": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 5}}]}],
        "answer of no tool": [*HELLO, {"role": "tool", "content": "42"}],
        "2,049 messages": HELLO * 2049,
    }
    return [chat(f"messages: {name}", 400, messages=value) for name, value in bad.items()]

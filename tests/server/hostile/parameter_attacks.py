"""Every parameter with values of the wrong type, out of its range, and against its neighbours."""

from __future__ import annotations

from typing import Any

from corpus import CHAT, COMPLETIONS, HELLO, Attack, chat, post

_WRONG: dict[str, list[Any]] = {
    "int": ["5", "", 1.5, True, [], [1], {}, 10**30, -(10**30)],
    "float": ["hot", "0.5", True, [], {}, 10**400],
    "bool": ["yes", "true", 1, 0, [], {}],
    "str": [5, 1.5, True, [], ["x"], {}],
    "texts": [5, True, {}, [5], [None], [[]], [["x"]]],
    "ids": ["5", 5, True, {}, ["5"], [1.5], [True], [None], [[]], [-1], [10**9], [10**30]],
    "object": ["x", 5, True, [], [1]],
}
_TYPES = {
    "n": "int",
    "max_tokens": "int",
    "max_completion_tokens": "int",
    "seed": "int",
    "top_k": "int",
    "min_tokens": "int",
    "prompt_logprobs": "int",
    "truncate_prompt_tokens": "int",
    "priority": "int",
    "top_logprobs": "int",
    "temperature": "float",
    "top_p": "float",
    "min_p": "float",
    "presence_penalty": "float",
    "frequency_penalty": "float",
    "repetition_penalty": "float",
    "length_penalty": "float",
    "timeout": "float",
    "stream": "bool",
    "logprobs": "bool",
    "ignore_eos": "bool",
    "skip_special_tokens": "bool",
    "include_stop_str_in_output": "bool",
    "return_token_ids": "bool",
    "use_beam_search": "bool",
    "add_special_tokens": "bool",
    "add_generation_prompt": "bool",
    "continue_final_message": "bool",
    "model": "str",
    "user": "str",
    "cache_salt": "str",
    "safety_identifier": "str",
    "stop": "texts",
    "bad_words": "texts",
    "stop_token_ids": "ids",
    "allowed_token_ids": "ids",
    "logit_bias": "object",
    "chat_template_kwargs": "object",
    "stream_options": "object",
    "repetition_detection": "object",
    "response_format": "object",
    "tools": "object",
}


def types() -> list[Attack]:
    """Each parameter with values of other types."""
    found = []
    for name, kind in _TYPES.items():
        for value in _WRONG[kind]:
            if name == "tools" and value == []:
                continue  # no tools
            alone: dict[str, Any] = {"max_tokens": None} if name == "max_completion_tokens" else {}
            found.append(chat(f"{name}={value!r}"[:80], 400, **{**alone, name: value}))
    return found


def ranges() -> list[Attack]:
    """Each parameter beyond what it may be."""
    values: dict[str, list[Any]] = {
        "n": [0, -1, 129, 2**31, 2**63],
        "max_tokens": [0, -1, 2**31, 2**63, 10**18],
        "temperature": [-0.1, -1e300, 100.1, 1e308],
        "top_p": [0, -0.1, 1.1, 1e308],
        "min_p": [-0.1, 1.1, -1e308],
        "top_k": [-2, -(2**31), -(2**63)],
        "presence_penalty": [-2.1, 2.1, 1e308],
        "frequency_penalty": [-2.1, 2.1, -1e308],
        "repetition_penalty": [0, -1, -1e308],
        "top_logprobs": [1],
        "prompt_logprobs": [-1, 21, 10**6],
        "min_tokens": [-1, 5, 2**31],
        "truncate_prompt_tokens": [0, -2, -(2**63)],
        "priority": [2**31, -(2**31) - 1],
        "seed": [2**64, -(2**63) - 1],
        "timeout": [0, -1, -1e308],
        "stop": ["", [""], ["x", ""], ["x"] * 65, ["x" * 1025], "x" * 100_000],
        "bad_words": [[""], ["x"] * 257, ["x" * 1025]],
        "stop_token_ids": [[1] * 1025],
        "allowed_token_ids": [[]],
        "cache_salt": [""],
        "model": ["gpt-4", "", "../../etc/passwd", "a\u0000b", "x" * 100_000, "{{ 7 * 7 }}"],
        "logit_bias": [
            {"5": 101},
            {"5": -101},
            {"-1": 1},
            {"999999999": 1},
            {"x": 1},
            {"": 1},
            {"1.5": 1},
            {"٣": 1},
            {" 5": 1},
            {"5": "1"},
            {"5": None},
            {"5": [1]},
            {str(i): 1 for i in range(1025)},
        ],
        "stream_options": [{"include_usage": True}, {"nothing": 1}],
        "repetition_detection": [{}, {"max_pattern_size": 0}, {"max_pattern_size": 10**9}, {"max_pattern_size": 5, "min_count": 1}],
        "length_penalty": [-1e308],
        "early_stopping": ["always", 1],
        "echo": [True],
        "store": [True],
        "audio": [{"voice": "x", "format": "wav"}],
        "modalities": [["audio"]],
        "web_search_options": [{}],
        "service_tier": ["flex", 1],
        "reasoning_effort": ["wrong", 5],
        "verbosity": ["loud"],
        "colour": ["blue", None, 5],
    }
    found = [
        chat(f"{name}={value!r}"[:80], 400, 404, **{name: value})
        for name, several in values.items()
        for value in several
        if value is not None
    ]
    found.append(chat("top_logprobs=21", 400, logprobs=True, top_logprobs=21))
    found.append(chat("top_logprobs=-1", 400, logprobs=True, top_logprobs=-1))
    return found


def contradictions() -> list[Attack]:
    """Parameters that exclude each other."""
    pairs: list[dict[str, Any]] = [
        {"max_tokens": 1, "max_completion_tokens": 2},
        {"continue_final_message": True, "add_generation_prompt": True},
        {"stream": True, "prompt_logprobs": 1},
        {"stream": True, "use_beam_search": True, "n": 2},
        {"use_beam_search": True, "n": 2, "stop": ["x"]},
        {"use_beam_search": True, "n": 1000},
        {"min_tokens": 2, "max_tokens": 1},
        {"n": 128, "max_tokens": 10**6},
        {"allowed_token_ids": [5], "logit_bias": {"5": "x"}},
        {"stream_options": {"include_usage": True}, "stream": False},
        {"top_logprobs": 5, "logprobs": False},
    ]
    return [chat(f"together: {pair}"[:80], 400, **pair) for pair in pairs]


def prompts() -> list[Attack]:
    """Prompts of completions, and tokens of /detokenize, that cannot be."""
    values: list[Any] = [
        "",
        [],
        [""],
        ["a", ""],
        [[]],
        [[], [1]],
        [1, "a"],
        [[1], "a"],
        [None],
        [[None]],
        [True],
        [1.5],
        [[1.5]],
        5,
        {},
        True,
    ]
    values += [[-1], [10**9], [2**63], [10**30], [[1, -1]], [[10**9]], ["a"] * 1025, [[1]] * 1025, "a" * 200_000, [1] * 100_000, [[[1]]]]
    found = [post(f"prompt={value!r}"[:80], COMPLETIONS, {"prompt": value, "max_tokens": 1}, 400) for value in values]
    more: list[dict[str, Any]] = [
        {"best_of": 0},
        {"best_of": 129},
        {"best_of": 1, "n": 2},
        {"best_of": 3, "stream": True},
        {"logprobs": -1},
        {"logprobs": 10**6},
        {"logprobs": True},
        {"suffix": "x"},
        {"echo": "yes"},
        {"max_tokens": -1},
        {"messages": HELLO},
    ]
    found += [post(f"completion with {one}", COMPLETIONS, {"prompt": "a", "max_tokens": 1, **one}, 400) for one in more]
    tokens: list[Any] = [[-1], [10**9], [10**30], ["a"], "a", 5, None, {}, [[1]], [1.5], [True]]
    found += [post(f"tokens={value!r}", "/detokenize", {"tokens": value}, 400) for value in tokens]
    texts: list[dict[str, Any]] = [{}, {"prompt": 5}, {"prompt": "a", "messages": HELLO}, {"messages": []}, {"prompt": ["a"]}]
    found += [post(f"tokenize {body}", "/tokenize", body, 400) for body in texts]
    return found


def templates() -> list[Attack]:
    """Templates in requests, and variables that no template should be given."""
    sources = [
        "{{ 1 }}",
        "{% for a in range(1000000000) %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 'a' * 10000000000 }}",
        "{% include '/etc/passwd' %}",
        "{% set x = namespace() %}{{ x.__dict__ }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    ]
    found = [chat(f"chat_template={source}"[:80], 400, chat_template=source) for source in sources]
    found += [
        post(f"tokenize with {source}"[:80], "/tokenize", {"messages": HELLO, "chat_template": source}, 400) for source in sources[:3]
    ]
    names = ["messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"]
    found += [chat(f"template variable {name}", 400, chat_template_kwargs={name: "x"}) for name in names]
    return found


def structures() -> list[Attack]:
    """Formats, schemas and tools that are none."""
    formats: list[Any] = [
        {"type": "yaml"},
        {"type": None},
        {"type": ["json_object"]},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wrong"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "http://169.254.169.254/"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "file:///etc/passwd"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/nowhere"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "pattern": "("}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "pattern": "(?<=a)b"}}},
    ]
    found = [chat(f"response_format={value}"[:90], 400, response_format=value) for value in formats]
    tools: list[Any] = [
        [None],
        ["x"],
        [{}],
        [{"type": "shell"}],
        [{"type": "function"}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "../../etc/passwd"}}],
        [{"type": "function", "function": {"name": "x" * 1000}}],
        [{"type": "function", "function": {"name": "a", "parameters": "x"}}],
        [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}],
        [{"type": "function", "function": {"name": "a"}}] * 129,
    ]
    found += [chat(f"tools={value}"[:90], 400, tools=value) for value in tools]
    choices: list[Any] = ["wrong", 5, {"type": "function", "function": {"name": "nobody"}}, "required", {}, []]
    found += [chat(f"tool_choice={value}"[:90], 400, tool_choice=value) for value in choices]
    regexes = ["(", "a{1000000000}", "(a*)*b" * 10_000, "(?P<x>", "\\", "[", "a" * 1_000_000]
    found += [chat(f"guided_regex={value}"[:40], 400, guided_regex=value) for value in regexes]
    return found


def paths() -> list[Attack]:
    """Good bodies at places where others belong."""
    return [
        post("chat body at completions", COMPLETIONS, {"messages": HELLO}, 400),
        post("completion body at chat", CHAT, {"prompt": "Hello"}, 400),
        post("chat body at detokenize", "/detokenize", {"messages": HELLO}, 400),
        post("body at health", "/health", {"messages": HELLO}, 405),
        post("body at models", "/v1/models", {"messages": HELLO}, 405),
    ]

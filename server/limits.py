"""How much one request may hold, so that none keeps the others waiting while it is read.

The structure of a large body is counted before it is decoded, because decoding holds the interpreter from its beginning to its end:
16 MB of empty lists would take it 1.6 s. Finer counts are taken from the decoded JSON before pydantic sees it, because pydantic
explains each of a million wrong elements.
"""

from __future__ import annotations

import re
from typing import Any

from server.errors import ApiError

MAX_NAMES = 256  # parameters of a body
MAX_MESSAGES = 2048
MAX_TOOLS = 128  # OpenAI's bound
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024  # characters of a stop string or a bad word
MAX_STOP_TOKEN_IDS = 1024
MAX_TEMPLATE_LENGTH = 64 << 10  # characters of a chat template in a request
MAX_TOKEN_IDS = 1 << 20  # in one prompt, in the tokens of /detokenize, in allowed_token_ids
MAX_VALUES = 1 << 16  # values of a body at any depth: content parts, tool calls, template variables, ...

# Flat lists that may be long and are checked in one go.
_FLAT = {"prompt": MAX_TOKEN_IDS, "tokens": MAX_TOKEN_IDS, "allowed_token_ids": MAX_TOKEN_IDS}
_LISTS = {
    **_FLAT,
    "messages": MAX_MESSAGES,
    "input": MAX_MESSAGES,
    "tools": MAX_TOOLS,
    "functions": MAX_TOOLS,
    "stop": MAX_STOP_STRINGS,
    "stop_sequences": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
}

# For docs/parameters.md.
LIMITS = (
    f"{MAX_MESSAGES} messages in a conversation, {MAX_TOOLS} tools",
    f"{MAX_STOP_STRINGS} stop strings of {MAX_STOP_LENGTH} characters, as long for `bad_words`, and {MAX_STOP_TOKEN_IDS} stop token ids",
    f"{MAX_TOKEN_IDS} token ids in one prompt, in the `tokens` of `/detokenize`, or in `allowed_token_ids`",
    f"{MAX_VALUES} JSON values in a body, those in these lists not counted",
    "a text of more characters than the model's context could hold if it were the vocabulary's longest token throughout",
)

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def check_structure(data: bytes) -> None:
    """Raises ApiError 400 for an undecoded body that holds more values than any request needs."""
    # Strings may hold commas and brackets too. Only where these could be too many are the strings told apart.
    if len(data) <= 2 * MAX_VALUES or (_num_containers(data) <= MAX_VALUES and data.count(b",") <= MAX_VALUES):
        return
    end = num_commas = num_containers = 0
    for num_strings, string in enumerate(_STRING.finditer(data)):
        between, end = data[end : string.start()], string.end()
        num_commas += between.count(b",")
        num_containers += _num_containers(between)
        # Each value may have a name.
        if num_strings > 2 * MAX_VALUES:
            raise _too_many_values()
    rest = data[end:]
    if num_containers + _num_containers(rest) > MAX_VALUES or num_commas + rest.count(b",") > MAX_VALUES + MAX_TOKEN_IDS:
        raise _too_many_values()


def _num_containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _too_many_values() -> ApiError:
    message = f"the body holds too many values: at most {MAX_VALUES} are read, besides {MAX_TOKEN_IDS} token ids"
    return ApiError(400, message, code="request_too_large")


def check_counts(body: dict[str, Any], num_bytes: int, token_lists: tuple[str, ...] = ()) -> None:
    """Raises ApiError 400 for a body of `num_bytes` bytes that holds more of something than any request needs.

    The fields `token_lists` are checked in one go later on, however many values they hold.
    """
    if len(body) > MAX_NAMES:
        raise ApiError(400, f"the body has {len(body)} parameters, but no more than {MAX_NAMES} are read")
    for name, most in _LISTS.items():
        value = body.get(name)
        if isinstance(value, list) and len(value) > most:
            raise ApiError(400, f"{name} must hold at most {most} items, but holds {len(value)}", param=name)
    # A value takes two bytes at least, with the comma: what is shorter cannot hold so many.
    if num_bytes <= 2 * MAX_VALUES:
        return
    room = MAX_VALUES
    for name, value in body.items():
        if name not in _FLAT and name not in token_lists:
            room -= _num_values(value, room)
            if room < 0:
                raise ApiError(400, f"{name} is too large: a body may hold {MAX_VALUES} values in all", param=name[:100])


def _num_values(value: Any, enough: int) -> int:
    """The values in a value, itself included; counting ends once there are more than `enough`."""
    count = 1
    containers: list[Any] = [value]
    while containers and count <= enough:
        container = containers.pop()
        if isinstance(container, dict | list):
            count += len(container)
            if count <= enough:
                containers.extend(container.values() if isinstance(container, dict) else container)
    return count

"""A chat completion's body from another API's parameters, with errors that name what the client wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.errors import InvalidRequestError
from server.errors import ApiError
from server.protocol import fates
from server.protocol.body import validated
from server.protocol.chat import ChatCompletionRequest

Rename = Callable[[str], str]

_DOTTED = re.compile(r"\b(?:messages|tools|tool_choice)(?:\.\w+)+")


def chat_request(fields: dict[str, Any], rename: Rename) -> ChatCompletionRequest:
    """The validated chat completion. Raises ApiError 400 for what chat refuses, under the client's own name for it."""
    with renamed(rename):
        return validated(fields, ChatCompletionRequest, fates.CHAT, allow_unknown=False)


@contextmanager
def renamed(rename: Rename) -> Iterator[None]:
    """Errors that pass have their `param` renamed, and what their message says of it."""
    try:
        yield
    except ApiError as error:
        if error.param is None:
            raise
        message = _renamed_message(error.message, error.param, rename)
        raise ApiError(error.status, message, param=rename(error.param), code=error.code, headers=error.headers) from error
    except InvalidRequestError as error:
        if error.param is None:
            raise
        message = _renamed_message(str(error), error.param, rename)
        raise InvalidRequestError(message, param=rename(error.param), code=error.code) from error


def rename_with(names: Mapping[str, str], inner: Mapping[str, str], messages: Sequence[str]) -> Rename:
    """A function from chat's names to the client's: of parameters by `names`, of messages by where each came from.

    `inner`: names of fields within either, by chat's; those that the client's API has not are empty.
    """

    def rename(param: str) -> str:
        head, *rest = param.split(".")
        if head == "messages" and rest and rest[0].isdigit() and int(rest[0]) < len(messages):
            head = messages[int(rest.pop(0))]
        else:
            head = names.get(head, head)
        return ".".join([head, *filter(None, (inner.get(step, step) for step in rest))])

    return rename


def _renamed_message(message: str, param: str, rename: Rename) -> str:
    """The message with the names that stand in it: those with dots wherever they are, the parameter itself at its beginning."""
    message = _DOTTED.sub(lambda found: rename(found[0]), message)
    return rename(param) + message.removeprefix(param) if message.startswith(param) else message

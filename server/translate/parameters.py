"""A chat completion's body from another API's parameters, with errors that name what the client wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.errors import InvalidRequestError
from server.errors import ApiError
from server.protocol import fates
from server.protocol.body import validated
from server.protocol.chat import ChatCompletionRequest

Rename = Callable[[str], str]


def chat_request(fields: dict[str, Any], rename: Rename) -> ChatCompletionRequest:
    """The validated chat completion. Raises ApiError 400 for what chat refuses, under the client's own name for it."""
    with renamed(rename):
        return validated(fields, ChatCompletionRequest, fates.CHAT, allow_unknown=False)


@contextmanager
def renamed(rename: Rename) -> Iterator[None]:
    """Errors that pass have their `param` renamed, and the message where it begins with it."""
    try:
        yield
    except ApiError as error:
        if error.param is None:
            raise
        name = rename(error.param)
        message = _named(error.message, error.param, name)
        raise ApiError(error.status, message, param=name, code=error.code, headers=error.headers) from error
    except InvalidRequestError as error:
        if error.param is None:
            raise
        name = rename(error.param)
        raise InvalidRequestError(_named(str(error), error.param, name), param=name, code=error.code) from error


def rename_with(names: Mapping[str, str], messages: Sequence[str]) -> Rename:
    """A function from chat's names to the client's: of parameters by `names`, of messages by where each came from."""

    def rename(param: str) -> str:
        head, _, rest = param.partition(".")
        index, _, inner = rest.partition(".")
        if head == "messages" and index.isdigit() and int(index) < len(messages):
            return ".".join(filter(None, (messages[int(index)], inner)))
        return ".".join(filter(None, (names.get(head, head), rest)))

    return rename


def _named(message: str, old: str, new: str) -> str:
    return new + message.removeprefix(old) if message.startswith(old) else message

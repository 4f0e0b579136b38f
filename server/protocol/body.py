"""From the bytes of a request body to a validated model, or to a 400 that names the field."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import jiter
from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import Request

from server.errors import ApiError
from server.limits import check_counts, check_structure
from server.observability.record import HAS_ARRIVED
from server.protocol.fate import Parameter, sort_parameters

_LONGEST_NAME = 200
_CACHED_STRINGS = 64 << 10  # bytes of the longest body whose strings are cached
_LONGEST_REASON = 200  # characters: a reason may quote a name, which may be long
_MOST_DISCARDED = 4  # times the longest body


class RequestBody(BaseModel):
    """The root of the request models. Strict, so that "5" is no number and 1 no truth value, as at OpenAI."""

    token_lists: ClassVar[tuple[str, ...]] = ()  # fields, beside those that all bodies share, that may hold very many token ids

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


def _as_token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("must be a list of token ids")
    return value


# One verdict on the whole list, which may be long, where pydantic would give one on each element.
TokenIds = Annotated[list[int], PlainValidator(_as_token_ids, json_schema_input_type=list[int])]
Body = TypeVar("Body", bound=RequestBody)


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of what is this or null."""
    null = {"type": "null"}
    arms = schema.get("anyOf")
    if arms is not None:
        return schema if null in arms else {**schema, "anyOf": [*arms, null]}
    outer: dict[str, Any] = {name: schema[name] for name in ("title", "default") if name in schema}
    return {"anyOf": [{name: value for name, value in schema.items() if name not in outer}, null], **outer}


def check_content_type(headers: Headers) -> None:
    """Raises ApiError 400 unless the body says that it is JSON, or a client that is no web page says nothing, and 415 if it is compressed.

    Browsers let any page send other types, or none, to any server, this machine's too, without asking that server first. 400 rather
    than 415, because it is what OpenAI answers and the SDK has a class for.
    """
    if (encoding := headers.get("content-encoding", "identity")).strip().lower() != "identity":
        message = f"the body must not be compressed, but its content-encoding is {encoding[:100]!r}"
        raise ApiError(415, message, code="unsupported_content_encoding", headers={"connection": "close"})
    given = headers.get("content-type")
    if given is None and "origin" not in headers:
        return
    media_type = (given or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = f"the content-type must be application/json, but is {media_type[:100]!r}"
        raise ApiError(400, message, code="invalid_content_type", headers={"connection": "close"})


async def read_body(request: Request, longest: int, patience: float) -> bytes:
    """The request's body. Raises ApiError 413 for one longer than `longest` bytes, 408 when it takes `patience` seconds (0: for ever)."""
    if HAS_ARRIVED in request.scope:
        return await _read(request, longest)
    try:
        async with asyncio.timeout(patience or None):
            return await _read(request, longest)
    except TimeoutError:
        message = f"the request's body did not arrive within {patience:g} s"
        raise ApiError(408, message, code="body_timeout", headers={"connection": "close"}) from None


async def _read(request: Request, longest: int) -> bytes:
    declared = request.headers.get("content-length", "")
    too_long = declared.isdigit() and int(declared) > longest
    # Clients that ask first are answered first. Others send all before they read: what is refused is read to its end, within reason,
    # or they would see a broken connection in the place of the answer.
    if too_long and (request.headers.get("expect", "").lower() == "100-continue" or int(declared) > _MOST_DISCARDED * longest):
        raise _too_large(longest)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= longest and not too_long:
            parts.append(part)
        elif size > _MOST_DISCARDED * longest:
            raise _too_large(longest)
    if size > longest:
        raise _too_large(longest)
    return b"".join(parts)


def parse_body(data: bytes, model: type[Body], table: dict[str, Parameter], allow_unknown: bool) -> Body:
    """The validated body. Raises ApiError 400 naming the field at fault."""
    check_structure(data)
    try:
        # The cache of strings makes small bodies faster, and ones with very many different names slower.
        cache: Literal["all", "none"] = "all" if len(data) < _CACHED_STRINGS else "none"
        # Duplicate names are refused: what checks a body on its way here may read the first, where JSON libraries read the last.
        body = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode=cache)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {str(error)[:_LONGEST_REASON]}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    check_counts(body, len(data), model.token_lists)
    return validated(body, model, table, allow_unknown)


def validated(body: dict[str, Any], model: type[Body], table: dict[str, Parameter], allow_unknown: bool) -> Body:
    """The model of a decoded body. Raises ApiError 400 naming the field at fault."""
    kept = sort_parameters(body, table, allow_unknown)
    try:
        return model.model_validate(kept)
    except ValidationError as error:
        raise _as_api_error(error, kept) from error


def _as_api_error(error: ValidationError, body: dict[str, Any]) -> ApiError:
    details = error.errors(include_url=False, include_context=False)
    paths = [_path(detail, body) for detail in details]
    # The arms of a union each have their say about the same value; the one that got further into it was meant.
    param = max((path for path in paths if (path + ".").startswith(paths[0] + ".")), key=lambda path: path.count("."), default=paths[0])
    there = [detail for detail, path in zip(details, paths, strict=True) if path == param]
    reasons = "; or ".join(dict.fromkeys(map(_reason, there)))
    if not param:
        return ApiError(400, reasons)
    # What is known at OpenAI or Anthropic, such as images, and not here.
    code = "unsupported_parameter" if any(detail["type"].startswith("unsupported_") for detail in there) else None
    return ApiError(400, f"{param}: {reasons}", param=param, code=code)


def _reason(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "this field is required"
    if detail["type"] == "extra_forbidden":
        return "this field is not known"
    message = detail["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _path(detail: ErrorDetails, body: Any) -> str:
    """The field's place in the body, as in messages.0.content. pydantic's own location also names the arms of unions."""
    path: list[str] = []
    here: Any = body
    for step in detail["loc"]:
        if (isinstance(here, dict) and step in here) or (isinstance(here, list) and isinstance(step, int) and 0 <= step < len(here)):
            here = here[step]  # type: ignore[index]
            path.append(str(step))
        elif detail["type"] == "missing" and step == detail["loc"][-1]:
            path.append(str(step))
    return ".".join(path)[:_LONGEST_NAME]


def _too_large(longest: int) -> ApiError:
    # The rest of the body may be unread, so the connection cannot be used again.
    message = f"the request body is longer than the {longest} bytes that this server takes"
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})

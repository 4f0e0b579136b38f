"""The document: FastAPI's list of routes, with the bodies that the routes read and write themselves filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from server.middleware import OPEN_PATHS
from server.openapi.bounds import Schema, bounded
from server.openapi.messages_answers import AnthropicError
from server.openapi.openai_answers import Error
from server.openapi.operations import MEDIA_TYPES, OPERATIONS, Operation, parameters_of
from server.protocol.body import or_null
from server.protocol.fate import Fate, Parameter
from server.protocol.structure import StructuredOutputsBody
from server.routes import admin

_SCHEMAS = "#/components/schemas/"
_ERRORS = {
    400: "A parameter is missing, wrong or not supported: `param` names it.",
    401: "The key is missing or wrong.",
    403: "The key may not do this.",
    404: "There is no such thing: `code` says what.",
    408: "The request, or its answer, took longer than its timeout.",
    409: "The state of what is named does not allow this.",
    413: "The body is too long.",
    429: "Too much to do, or beyond a limit per minute. `Retry-After` says when to try again.",
    500: "An error of the server. The log has its cause under the id that the message names.",
    503: "The server starts, sleeps or stops.",
    507: "There is no room for the file.",
}
_OF_FILES = {409, 507}  # errors that only endpoints of files and batches have
# Anthropic's statuses for the same.
_ANTHROPIC_STATUSES = {408: 504, 503: 529}
_DESCRIPTION = (
    "An inference server with the endpoints of OpenAI's API, and Anthropic's `/v1/messages`. In request bodies, null is the same as "
    "leaving a parameter out."
)


def build_document(routes: Sequence[BaseRoute], version: str, root_path: str, with_admin: bool) -> dict[str, Any]:
    """What GET /openapi.json answers. `with_admin`: whether there are operators, for whom alone some of the routes exist."""
    servers = [{"url": root_path}] if root_path else None
    document = get_openapi(title="Octavo", version=version, description=_DESCRIPTION, routes=routes, servers=servers)
    references, schemas = _schemas()
    components = {
        "schemas": dict(sorted(schemas.items())),
        "responses": _error_responses(),
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
    }
    # A server without keys asks for none.
    document |= {"components": components, "security": [{}, {"bearer": []}, {"apiKey": []}]}
    if not with_admin:
        document["paths"] = {path: methods for path, methods in document["paths"].items() if path not in admin.PATHS}
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            _describe(described, f"{method.upper()} {path}", path, references)
    return document


def _schemas() -> tuple[dict[tuple[str, str], Schema], dict[str, Schema]]:
    """(references, components): where the schema of each operation's body, answer and events is found, and all the schemas."""
    wanted: list[tuple[tuple[str, str], Any]] = [(("", "structured_outputs"), StructuredOutputsBody)]
    wanted += [(("", "error"), Error), (("", "anthropic_error"), AnthropicError)]
    for name, operation in OPERATIONS.items():
        parts = {"body": operation.body, "answer": operation.answer, "events": operation.events}
        wanted += [((name, part), model) for part, model in parts.items() if model is not None]
    inputs: list[tuple[Any, Literal["validation"], TypeAdapter[Any]]] = [(key, "validation", TypeAdapter(model)) for key, model in wanted]
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_SCHEMAS + "{model}")
    references = {key: found[key, "validation"] for key, _ in wanted}
    schemas: dict[str, Schema] = definitions["$defs"]
    for name, operation in OPERATIONS.items():
        if operation.body is not None:
            component = references[name, "body"]["$ref"].removeprefix(_SCHEMAS)
            schemas[component] = _body(schemas[component], parameters_of(name), references["", "structured_outputs"])
    return references, schemas


def _body(schema: Schema, parameters: dict[str, Parameter], structured_outputs: Schema) -> Schema:
    """A body's schema with all parameters that are known, the bounds that are checked later, and null where it may stand."""
    types = {**schema["properties"], "structured_outputs": structured_outputs}
    required = schema.get("required", [])
    properties = {name: _parameter(parameter, types.get(name, {}), name in required) for name, parameter in parameters.items()}
    return {**schema, "properties": properties}


def _parameter(parameter: Parameter, schema: Schema, is_required: bool) -> Schema:
    match parameter.fate:
        case Fate.ACCEPTED:
            return {"description": f"Accepted, no effect here: {parameter.note}"}
        case Fate.REFUSED:
            neutral: list[Schema] = [*map(_only, parameter.neutral), {"type": "null"}]
            return {"anyOf": neutral, "description": f"Refused otherwise: {parameter.note}"}
    schema = bounded(parameter.name, schema)
    schema = schema if is_required else or_null(schema)
    return {**schema, "description": parameter.note} if parameter.note else schema


def _only(value: Any) -> Schema:
    """The schema of one value. Generators of clients know no constants that are lists or objects."""
    if isinstance(value, dict):
        return {"type": "object", "maxProperties": 0}
    if isinstance(value, list):
        items = {"items": {"type": "string", "enum": value}} if value else {"items": {}}
        return {"type": "array", **items, "minItems": len(value), "maxItems": len(value)}
    return {"const": value}


def _describe(described: dict[str, Any], name: str, path: str, references: dict[tuple[str, str], Schema]) -> None:
    """Fills in one operation."""
    answers = described["responses"]
    answers.pop("422", None)
    operation = OPERATIONS.get(name, Operation())
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": references[name, "body"]}}}
    if operation.answer is not None:
        answers["200"]["content"] = {"application/json": {"schema": references[name, "answer"]}}
    if operation.events is not None:
        answers["200"]["content"]["text/event-stream"] = {"schema": _event(references[name, "events"], name.endswith("completions"))}
    if name in MEDIA_TYPES:
        answers["200"]["content"] = {MEDIA_TYPES[name]: {"schema": {"type": "string", "format": "binary"}}}
    if path == "/ready":
        answers["503"] = {**answers["200"], "description": "Requests would not be served."}
    if path in OPEN_PATHS:
        described["security"] = []
        return
    if path in admin.PATHS:
        described["security"] = [{"bearer": []}, {"apiKey": []}]
    for status in _ERRORS:
        if status in _OF_FILES and not path.startswith(("/v1/files", "/v1/batches")):
            continue
        if path.startswith("/v1/messages"):
            answers[str(_ANTHROPIC_STATUSES.get(status, status))] = {"$ref": f"#/components/responses/Anthropic{status}"}
        else:
            answers[str(status)] = {"$ref": f"#/components/responses/Error{status}"}


def _event(events: Schema, ends_with_done: bool) -> Schema:
    """One event of a stream, whose `data` is JSON. Before OpenAPI 3.2, the schema of a stream is that of each event."""
    data: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": events}
    if ends_with_done:
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    data["description"] = "An error that ends the stream has the error object as its data."
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


def _error_responses() -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, description in _ERRORS.items():
        for prefix, schema in (("Error", "Error"), ("Anthropic", "AnthropicError")):
            content = {"application/json": {"schema": {"$ref": _SCHEMAS + schema}}}
            answers[f"{prefix}{status}"] = {"description": description, "content": content}
    return answers

"""What the bodies of /v1/responses and /v1/messages have in common: parameters that are chat's, under the same names."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from server.protocol.body import RequestBody, or_null

# For the tables of fates: name and note.
PASSED_ON = {
    "temperature": "0 is greedy; at most 100",
    "top_p": "",
    "top_k": "0 or -1 keeps all",
    "min_p": "",
    "seed": "as in chat",
    "frequency_penalty": "-2 to 2",
    "presence_penalty": "-2 to 2",
    "repetition_penalty": "0.01 to 100; 1 changes nothing",
    "priority": "lower runs earlier; 0 by default",
    "cache_salt": "as in chat",
    "timeout": "seconds until the request, waiting or running, ends with 408 (504 in Anthropic's shape)",
    "chat_template_kwargs": "variables for the chat template",
    "structured_outputs": "as in chat",
}


class TranslatedBody(RequestBody):
    """A body that becomes a chat completion's. Ranges are checked there."""

    model: str | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    def passed_on(self) -> dict[str, Any]:
        """The parameters that chat takes as they are."""
        return {name: value for name in ("model", *PASSED_ON) if (value := getattr(self, name)) is not None}


class BodyPart(RequestBody):
    """An object within a body. null is the same as leaving a field out, which is how clients send back what they were given."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        described = handler.resolve_ref_schema(written)
        required = described.get("required", [])
        for name, one in described.get("properties", {}).items():
            if name not in required:
                described["properties"][name] = or_null(one)
        return written

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value

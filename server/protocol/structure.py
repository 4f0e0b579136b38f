"""response_format and structured_outputs: what a body asks the answer to be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import from_json

from engine.structured_outputs import StructuralTag, StructuredOutputs, Tag
from server.protocol.body import RequestBody


def _named_as_at_openai(name: str) -> str:
    if not 0 < len(name) <= 64 or not all(character.isascii() and (character.isalnum() or character in "_-") for character in name):
        raise ValueError("must be 1 to 64 letters, digits, underscores and dashes")
    return name


class JsonSchema(RequestBody):
    """A schema with a name. All are enforced, `strict` or not."""

    name: Annotated[str, AfterValidator(_named_as_at_openai)]
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # left out: any JSON object
    strict: bool | None = None


class TagBody(RequestBody):
    """A piece of the text from `begin` to `end`, constrained between them by one of the others."""

    begin: str
    end: str = ""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    regex: str | None = None
    grammar: str | None = None

    def tag(self) -> Tag:
        return Tag(begin=self.begin, end=self.end, json=self.schema_, regex=self.regex, grammar=self.grammar)


class StructuralTagBody(RequestBody):
    """Free text, but from a trigger on one of the structures that begin with it."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: list[TagBody]
    triggers: list[str] = Field(default_factory=list)

    def structural_tag(self) -> StructuralTag:
        return StructuralTag(tags=tuple(body.tag() for body in self.structures), triggers=tuple(self.triggers))


class ResponseFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[TagBody] | None = None
    triggers: list[str] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError('json_schema is what the type "json_schema" has, and no other')
        if (self.structures is not None) != (self.type == "structural_tag"):
            raise ValueError('structures are what the type "structural_tag" has, and no other')
        return self

    def constraint(self) -> StructuredOutputs | None:
        """What the answer must be; None: anything. Raises InvalidRequestError for a constraint that is none."""
        if self.type == "text":
            return None
        if self.type == "structural_tag":
            tags = StructuralTagBody(structures=self.structures or [], triggers=self.triggers or [])
            return StructuredOutputs(structural_tag=tags.structural_tag())
        schema = None if self.json_schema is None else self.json_schema.schema_
        return StructuredOutputs(json_object=True) if schema is None else StructuredOutputs(json=schema)


def _json_read(value: Any) -> Any:
    """Some clients send what is an object as its text."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from None


class StructuredOutputsBody(RequestBody):
    """Exactly one of these."""

    json_: Annotated[dict[str, Any], BeforeValidator(_json_read)] | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Annotated[StructuralTagBody, BeforeValidator(_json_read)] | None = None

    def constraint(self) -> StructuredOutputs:
        """Raises InvalidRequestError for none or several."""
        return StructuredOutputs(
            json=self.json_,
            json_object=self.json_object,
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
            structural_tag=None if self.structural_tag is None else self.structural_tag.structural_tag(),
        )

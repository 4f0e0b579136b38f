"""The items of a response's input: messages, calls of functions and what they returned, reasoning, references to stored items."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from server.protocol.translated import BodyPart


class TextPart(BodyPart):
    """Text in a message. What an answer's part holds beside its text says nothing to the model."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


class RefusalPart(BodyPart):
    type: Literal["refusal"]
    refusal: str


class ReasoningPart(BodyPart):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


def _part_type(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "refusal" if kind == "refusal" else "text" if kind in ("input_text", "output_text", "text") else "other"


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")],
    Discriminator(
        _part_type,
        custom_error_type="unsupported_part",
        custom_error_message="must be of the type input_text, output_text or refusal: the model reads text alone",
    ),
]
Parts: TypeAlias = str | Annotated[list[Part], Field(min_length=1)]


class _Item(BodyPart):
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    created_by: str | None = None


class MessageItem(_Item):
    """A message. `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(_Item):
    """A call that the model asked for."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    caller: dict[str, Any] | None = None
    is_async: bool | None = Field(default=None, alias="async")


class FunctionOutputItem(_Item):
    """What the called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    name: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class ReasoningItem(_Item):
    """What the model wrote to itself. Encrypted reasoning is another server's, and cannot be read."""

    type: Literal["reasoning"]
    summary: list[ReasoningPart] = Field(default_factory=list)
    content: list[ReasoningPart] = Field(default_factory=list)


class ItemReference(BodyPart):
    """An item of a stored response, in its own place."""

    type: Literal["item_reference"] = "item_reference"
    id: str


def _item_type(value: Any) -> Any:
    if not isinstance(value, dict):
        return getattr(value, "type", None)
    return value.get("type") or ("message" if "role" in value else "item_reference" if "id" in value else None)


Item: TypeAlias = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
AnyItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _item_type,
        custom_error_type="unsupported_item",
        custom_error_message="must be a message, function_call, function_call_output, reasoning or item_reference: "
        "there are no other items here",
    ),
]

"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens, in Anthropic's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from engine.errors import InvalidRequestError
from server.protocol.body import RequestBody
from server.protocol.translated import BodyPart, TranslatedBody


class _Block(BodyPart):
    cache_control: Any = None  # the prefix cache needs no hint


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None


class ThinkingBlock(_Block):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""  # not looked at: nothing here depends on who wrote it


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock, Field()]] = ""
    is_error: bool = False


def _block_type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")],
    Discriminator(
        _block_type,
        custom_error_type="unsupported_block",
        custom_error_message="must be of the type text, thinking, tool_use or tool_result: the model reads text alone",
    ),
]


class AnthropicMessage(BodyPart):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(_Block):
    """A function. Tools that Anthropic runs or defines itself have other types."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = None  # input is always streamed as it comes


class AnthropicToolChoice(BodyPart):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(BodyPart):
    """`adaptive` leaves it to the model, and so does `enabled`, up to its budget."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(BodyPart):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BodyPart):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class MessageMetadata(BodyPart):
    user_id: str | None = None


class Prompting(RequestBody):
    """What both endpoints make a prompt of."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] = Field(default_factory=list)
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)


class CountTokensRequest(Prompting):
    model: str | None = None


class MessagesRequest(TranslatedBody, Prompting):
    """The implemented parameters of a message."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]  # beyond the context: as many as it has room for
    stop_sequences: list[str] = Field(default_factory=list)
    metadata: MessageMetadata = Field(default_factory=MessageMetadata)

    def check(self) -> None:
        """Raises InvalidRequestError for a budget that leaves nothing for the answer."""
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise InvalidRequestError("thinking.budget_tokens must be less than max_tokens", param="thinking.budget_tokens")

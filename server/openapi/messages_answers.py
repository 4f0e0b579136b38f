"""The shapes of /v1/messages: the message, the events of its stream, and errors. For documentation alone."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class AnthropicErrorDetails(TypedDict):
    error_code: str


class AnthropicErrorObject(TypedDict):
    type: str
    message: str
    details: NotRequired[AnthropicErrorDetails]


class AnthropicError(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorObject


class MessageText(TypedDict):
    type: Literal["text"]
    text: str


class MessageThinking(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class MessageToolUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = MessageText | MessageThinking | MessageToolUse


class MessageTokensDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """Prompt tokens that were cached are counted apart from the others."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class AnsweredMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: AnsweredMessage


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class MessageStop(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: MessageStop
    usage: MessageUsage


class Mark(TypedDict):
    """Nothing more than that the message has ended, or that the connection is alive."""

    type: Literal["message_stop", "ping"]


MessageStreamEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | Mark


class TokenCount(TypedDict):
    input_tokens: int

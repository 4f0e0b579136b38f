"""The shapes of /v1/responses: the response, its items, and the events of its stream. For documentation alone."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from server.openapi.openai_answers import TokenLogprob
from server.protocol.response_items import AnyItem, MessageItem
from server.protocol.responses import AllowedFunctions, FunctionChoice, TextFormat, Tool

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]
    status: ItemStatus


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText]
    status: ItemStatus


class OutputFunctionCall(TypedDict):
    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str  # JSON
    status: ItemStatus


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseReasoning(TypedDict):
    effort: str | None
    summary: str | None


class ResponseText(TypedDict):
    format: TextFormat
    verbosity: str


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | list[MessageItem] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: ResponseText
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions
    tools: list[Tool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class InputTokenCount(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class InputItemList(TypedDict):
    object: Literal["list"]
    data: list[AnyItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Event(TypedDict):
    sequence_number: int


class ResponseEvent(_Event):
    """The response begins, or ends."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
    ]
    response: ResponseObject


class OutputItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _Placed(_Event):
    item_id: str
    output_index: int


class ContentPartEvent(_Placed):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class TextDeltaEvent(_Placed):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(_Placed):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(_Placed):
    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningDoneEvent(_Placed):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDeltaEvent(_Placed):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(_Placed):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


ResponseStreamEvent = (
    ResponseEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)

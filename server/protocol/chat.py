"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from engine.chat.format import ChatFormat
from engine.chat.plan import AnswerWishes
from engine.errors import InvalidRequestError
from engine.tool_calls.tools import ToolUse
from server.limits import MAX_TEMPLATE_LENGTH
from server.protocol.body import RequestBody
from server.protocol.sampling import SamplingBody
from server.protocol.tools import ToolBody, ToolChoice, tool_use


class ContentPart(BaseModel):
    """A piece of a message's content. Which types can be rendered is decided later, so that others get an error of their own."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str


class FunctionCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    name: str
    arguments: str | dict[str, Any]


class ToolCall(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One message. Fields that are not named here reach the template, which may know them (`reasoning_content`, ...)."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and "content" in self.model_fields_set and self.role != "assistant":
            raise ValueError(f"has no content, which only an assistant's message may lack, and this is of the role {self.role!r}")
        return self


# Variables that the server itself gives to templates.
_RESERVED = {"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
Messages = Annotated[list[Message], Field(min_length=1)]


class TemplateBody(RequestBody):
    """The parameters that say how messages become a prompt."""

    tools: list[ToolBody] = Field(default_factory=list)
    add_generation_prompt: bool | None = None  # None: unless the final message is continued
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_LENGTH)] | None = None  # only where the server allows it
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_reserved_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := _RESERVED & value.keys():
            raise ValueError(f"must not set {min(taken)!r}, which is not the template's to choose")
        return value

    def tool_use(self) -> ToolUse | None:
        """What the answer may call; None for nothing. Raises InvalidRequestError, or ApiError for tools that are no functions."""
        return tool_use(self.tools, None, parallel=True)

    def template_variables(self, format: ChatFormat) -> dict[str, Any]:
        """Variables for the template beside the messages. Raises InvalidRequestError for what the model has not."""
        return self.chat_template_kwargs

    def opens_answer(self) -> bool:
        """Whether the prompt ends where an answer begins. Raises InvalidRequestError for a contradiction."""
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other: a message is continued, or a new one begins",
                param="continue_final_message",
            )
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class ChatCompletionRequest(SamplingBody, TemplateBody):
    """The implemented parameters of a chat completion."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tool_choice: ToolChoice | None = None  # None: auto
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    include_reasoning: bool = True
    safety_identifier: str | None = None
    add_special_tokens: bool = False  # templates write them out

    def tool_use(self) -> ToolUse | None:
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def template_variables(self, format: ChatFormat) -> dict[str, Any]:
        effort = self.reasoning_effort
        return {**({} if effort is None else format.variables_of(effort)), **self.chat_template_kwargs}

    def answer_wishes(self, format: ChatFormat) -> AnswerWishes:
        return AnswerWishes(
            begins_message=self.opens_answer(),
            template_variables=self.template_variables(format),
            wants_no_reasoning=self.reasoning_effort == "none",
            thinking_token_budget=self.thinking_token_budget,
            shows_reasoning=self.include_reasoning,
        )

    def token_limit(self) -> int | None:
        """max_tokens under either of its names. Raises InvalidRequestError when they differ."""
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise InvalidRequestError("max_tokens and max_completion_tokens mean the same, but differ", param="max_completion_tokens")
        return both.pop() if both else None

    @property
    def end_user(self) -> str | None:
        return self.user if self.user is not None else self.safety_identifier

    def wanted_logprobs(self) -> int | None:
        """How many alternatives to each token are wanted; None: no log probabilities. Raises InvalidRequestError for a contradiction."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= 20:
            raise InvalidRequestError(f"top_logprobs must be between 0 and 20, but is {self.top_logprobs}", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from engine.errors import InvalidRequestError
from server.protocol.body import RequestBody
from server.protocol.response_items import AnyItem, MessageItem
from server.protocol.translated import BodyPart, TranslatedBody

LOGPROBS = "message.output_text.logprobs"

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)
]


class TextFormat(BodyPart):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextSettings(BodyPart):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(BodyPart):
    """`summary: auto` asks for the best summary that there is; here the reasoning itself is given in the place of one."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class FunctionTool(BodyPart):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None


class NamespaceTool(BodyPart):
    """Functions under a common name. A call says which namespace its function is of."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[FunctionTool]


def _tool_type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[NamespaceTool, Tag("namespace")],
    Discriminator(
        _tool_type,
        custom_error_type="unsupported_tool",
        custom_error_message="must be of the type function or namespace: the server runs no tools itself",
    ),
]


def flat_name(namespace: str | None, name: str) -> str:
    """The name under which the model knows a function."""
    return name if namespace is None else f"{namespace}__{name}"


class FunctionChoice(BodyPart):
    type: Literal["function"]
    name: str


class AllowedFunctions(BodyPart):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]


class ResponseStreamOptions(BodyPart):
    include_obfuscation: bool | None = None  # hides token lengths from eavesdroppers at OpenAI; no effect here


class ResponseInput(RequestBody):
    """What a prompt is made of, to be answered or to be counted."""

    model: str | None = None
    input: str | list[AnyItem] = Field(default_factory=list)
    instructions: str | list[MessageItem] | None = None
    previous_response_id: str | None = None
    text: TextSettings = Field(default_factory=TextSettings)
    reasoning: ReasoningSettings = Field(default_factory=ReasoningSettings)
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions = "auto"
    parallel_tool_calls: bool = True
    truncation: Literal["auto", "disabled"] = "disabled"

    def check(self) -> None:
        """Raises InvalidRequestError for parameters that exclude each other, or that say nothing."""
        if not self.input and self.previous_response_id is None:
            raise InvalidRequestError("input is empty: there is nothing to respond to", param="input")

    @property
    def namespaces(self) -> dict[str, tuple[str, str]]:
        """Namespace and name of the functions that are in one, by the names under which the model knows them."""
        spaces = [tool for tool in self.tools if isinstance(tool, NamespaceTool)]
        return {flat_name(space.name, tool.name): (space.name, tool.name) for space in spaces for tool in space.tools}


class ResponsesRequest(ResponseInput, TranslatedBody):
    """The implemented parameters of a response."""

    store: bool = True
    background: bool = False
    metadata: Metadata = Field(default_factory=dict)
    include: list[Include] = Field(default_factory=list)
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: ResponseStreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    stop: str | list[str] | None = None
    thinking_token_budget: int | None = None

    def check(self) -> None:
        super().check()
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
        if self.background and not self.store:
            raise InvalidRequestError("a background response must be stored, or nobody could fetch it", param="background")
        if self.top_logprobs and not self.wants_logprobs:
            raise InvalidRequestError(f"top_logprobs needs {LOGPROBS!r} in include", param="top_logprobs")

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include

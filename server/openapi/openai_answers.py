"""The shapes of answers in OpenAI's older forms: chat, completions, embeddings, models, and what is like them. For documentation alone."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class ErrorObject(TypedDict):
    """What was wrong. `param` names the parameter at fault, `code` is for programs, `message` for people."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    error: ErrorObject


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class CompletionUsage(TypedDict):
    """The tokens of a request. A prompt counts once for all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Alternative(TypedDict):
    """A token, its log probability in the model's own distribution, and its bytes, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Alternative):
    top_logprobs: list[Alternative]


class ChoiceLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class RankedLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


# For each token of a prompt, from token ids to log probabilities. The first token has none.
PromptLogprobs = list[dict[str, RankedLogprob] | None]


class CalledFunction(TypedDict):
    name: str
    arguments: str  # JSON


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[MessageToolCall]]


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(TypedDict):
    """`stop_reason` is the stop string or token id that ended the answer, if one did."""

    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChoiceDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str
    reasoning: str
    tool_calls: list[ToolCallDelta]


class ChunkChoice(TypedDict):
    index: int
    delta: ChoiceDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """One event of a stream, which `[DONE]` ends. `usage` is there with `stream_options.include_usage`: null until the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[CompletionUsage | None]
    prompt_token_ids: NotRequired[list[int]]


class LegacyLogprobs(TypedDict):
    """Parallel lists: one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: NotRequired[str | int | None]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class CompletionChunk(TypedDict):
    """One event of a stream, which `[DONE]` ends."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: NotRequired[CompletionUsage | None]


class PromptUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """`embedding` is base64 of little-endian float32 where that was asked for."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class Score(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage


class RankedText(TypedDict):
    text: str


class RankedDocument(TypedDict):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(TypedDict):
    id: str
    model: str
    usage: PromptUsage
    results: list[RankedDocument]


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(TypedDict):
    prompt: str


class Deleted(TypedDict):
    id: str
    object: str
    deleted: bool


class File(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str


class FileList(TypedDict):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchCounts(TypedDict):
    total: int
    completed: int
    failed: int


class Batch(TypedDict):
    """`errors` holds what was wrong with the input file; the answers and errors of lines are in the output and error files."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool

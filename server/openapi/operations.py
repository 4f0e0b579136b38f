"""What each endpoint takes and answers. Routes read and write bodies themselves, so that FastAPI knows nothing of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server.openapi import messages_answers as messages
from server.openapi import openai_answers as openai
from server.openapi import responses_answers as responses
from server.protocol import fates
from server.protocol.batches import BatchRequest
from server.protocol.body import RequestBody
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest
from server.protocol.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from server.protocol.fate import Parameter
from server.protocol.messages import CountTokensRequest, MessagesRequest
from server.protocol.responses import ResponseInput, ResponsesRequest
from server.protocol.tokenization import DetokenizeRequest, TokenizeRequest


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    answer: Any = None  # the type of a whole answer; None: it is left as FastAPI describes it
    body: type[RequestBody] | None = None
    events: Any = None  # the type of a stream's events, where an answer may be a stream


OPERATIONS: dict[str, Operation] = {
    "POST /v1/chat/completions": Operation(openai.ChatCompletion, ChatCompletionRequest, openai.ChatCompletionChunk),
    "POST /v1/completions": Operation(openai.Completion, CompletionRequest, openai.CompletionChunk),
    "POST /v1/responses": Operation(responses.ResponseObject, ResponsesRequest, responses.ResponseStreamEvent),
    "POST /v1/responses/input_tokens": Operation(responses.InputTokenCount, ResponseInput),
    "GET /v1/responses/{response_id}": Operation(responses.ResponseObject, events=responses.ResponseStreamEvent),
    "DELETE /v1/responses/{response_id}": Operation(openai.Deleted),
    "POST /v1/responses/{response_id}/cancel": Operation(responses.ResponseObject),
    "GET /v1/responses/{response_id}/input_items": Operation(responses.InputItemList),
    "POST /v1/messages": Operation(messages.AnsweredMessage, MessagesRequest, messages.MessageStreamEvent),
    "POST /v1/messages/count_tokens": Operation(messages.TokenCount, CountTokensRequest),
    "POST /v1/embeddings": Operation(openai.EmbeddingList, EmbeddingRequest),
    "POST /v1/score": Operation(openai.ScoreList, ScoreRequest),
    "POST /v1/rerank": Operation(openai.Ranking, RerankRequest),
    "POST /v1/files": Operation(openai.File),
    "GET /v1/files": Operation(openai.FileList),
    "GET /v1/files/{file_id}": Operation(openai.File),
    "DELETE /v1/files/{file_id}": Operation(openai.Deleted),
    "POST /v1/batches": Operation(openai.Batch, BatchRequest),
    "GET /v1/batches": Operation(openai.BatchList),
    "GET /v1/batches/{batch_id}": Operation(openai.Batch),
    "POST /v1/batches/{batch_id}/cancel": Operation(openai.Batch),
    "GET /v1/models": Operation(openai.ModelList),
    "GET /v1/models/{name}": Operation(openai.Model),
    "POST /tokenize": Operation(openai.Tokens, TokenizeRequest),
    "POST /detokenize": Operation(openai.DetokenizedText, DetokenizeRequest),
}

# Answers that are no JSON.
MEDIA_TYPES = {"GET /v1/files/{file_id}/content": "application/octet-stream", "GET /metrics": "text/plain"}


def parameters_of(name: str) -> dict[str, Parameter]:
    """The fates of an operation's parameters."""
    return fates.ENDPOINTS.get(name, {})

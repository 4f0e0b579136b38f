"""No request parameter is dropped silently: each has a fate, which validation and the documentation share."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import chat_completion_stream_options_param
from openai.types.chat import completion_create_params as chat_completion_create_params
from openai.types.responses import InputTokenCountParams, response_create_params

from server.errors import ApiError
from server.protocol import fates
from server.protocol.body import RequestBody
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest
from server.protocol.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from server.protocol.fate import Fate, Parameter, sort_parameters
from server.protocol.fates_embeddings import EMBEDDINGS, RERANK, SCORE
from server.protocol.fates_messages import COUNT_TOKENS, MESSAGES
from server.protocol.fates_responses import INPUT_TOKENS, RESPONSES
from server.protocol.messages import CountTokensRequest, MessagesRequest
from server.protocol.responses import ResponseInput, ResponsesRequest
from server.protocol.sampling import StreamOptions
from server.protocol.tokenization import DetokenizeRequest, TokenizeRequest

MODELS = [
    (fates.CHAT, ChatCompletionRequest),
    (fates.COMPLETIONS, CompletionRequest),
    (RESPONSES, ResponsesRequest),
    (INPUT_TOKENS, ResponseInput),
    (MESSAGES, MessagesRequest),
    (COUNT_TOKENS, CountTokensRequest),
    (EMBEDDINGS, EmbeddingRequest),
    (SCORE, ScoreRequest),
    (RERANK, RerankRequest),
    (fates.TOKENIZE, TokenizeRequest),
    (fates.DETOKENIZE, DetokenizeRequest),
]


def _sdk_parameters(module: Any) -> set[str]:
    types = [
        getattr(module, name)
        for name in dir(module)
        if name.endswith(("CreateParamsNonStreaming", "CreateParamsStreaming", "EmbeddingCreateParams"))
    ]
    return {name for one in types for name in typing.get_type_hints(one)}


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (chat_completion_create_params, fates.CHAT),
        (completion_create_params, fates.COMPLETIONS),
        (response_create_params, RESPONSES),
        (message_create_params, MESSAGES),
        (embedding_create_params, EMBEDDINGS),
    ],
    ids=["chat", "completions", "responses", "messages", "embeddings"],
)
def test_every_parameter_of_the_sdk_has_a_fate(module: Any, table: dict[str, Parameter]) -> None:
    parameters = _sdk_parameters(module)
    assert len(parameters) > 4
    assert parameters <= set(table)
    assert {name for name in parameters if table[name].extra} == set(), "these are OpenAI's own"
    assert {name for name, parameter in table.items() if not parameter.extra} == parameters | (set(table) & {"max_tokens"})


def test_every_parameter_of_counting_tokens_and_of_the_beta_has_a_fate() -> None:
    assert set(COUNT_TOKENS) == set(typing.get_type_hints(MessageCountTokensParams))
    betas = (beta_create_params.MessageCreateParamsNonStreaming, beta_create_params.MessageCreateParamsStreaming)
    assert {name for one in betas for name in typing.get_type_hints(one)} <= {*MESSAGES, "betas"}, "betas is a header"
    assert set(INPUT_TOKENS) == set(typing.get_type_hints(InputTokenCountParams))


def test_every_stream_option_of_the_sdk_is_known() -> None:
    options = typing.get_type_hints(chat_completion_stream_options_param.ChatCompletionStreamOptionsParam)
    assert set(options) <= set(StreamOptions.model_fields)


@pytest.mark.parametrize(("table", "model"), MODELS, ids=lambda value: getattr(value, "__name__", None))
def test_the_implemented_parameters_are_the_fields_of_the_model(table: dict[str, Parameter], model: type[RequestBody]) -> None:
    assert {name for name, parameter in table.items() if parameter.fate is Fate.IMPLEMENTED} == set(model.model_fields)


@pytest.mark.parametrize("table", fates.ENDPOINTS.values(), ids=fates.ENDPOINTS)
def test_neutral_values_and_null_are_accepted(table: dict[str, Parameter]) -> None:
    for name, parameter in table.items():
        assert sort_parameters({name: None}, table, False) == {}
        for value in parameter.neutral:
            assert sort_parameters({name: value}, table, False) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("store", True),
        ("service_tier", "flex"),
        ("web_search_options", {}),
        ("verbosity", "low"),
        ("store", "false"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        sort_parameters({name: value}, fates.CHAT, False)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "unsupported_parameter", name)


def test_parameters_without_effect_are_accepted_whatever_they_hold() -> None:
    body = {"metadata": {"a": "b"}, "prompt_cache_key": "k", "prediction": {"type": "content"}}
    assert sort_parameters(body, fates.CHAT, False) == {}


def test_unknown_parameters_are_refused_by_name_unless_they_are_allowed() -> None:
    with pytest.raises(ApiError, match="'temprature'") as caught:
        sort_parameters({"temprature": 1, "stream": True}, fates.CHAT, False)
    assert (caught.value.status, caught.value.param) == (400, "temprature")
    assert sort_parameters({"temprature": 1, "stream": True}, fates.CHAT, True) == {"stream": True}


def test_the_documentation_says_what_the_table_says() -> None:
    written = (Path(__file__).parents[2] / "docs" / "parameters.md").read_text()
    assert written == fates.page(), "run `python -m server.protocol.fates > docs/parameters.md`"

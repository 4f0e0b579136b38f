"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import Field, PlainValidator

from engine.errors import InvalidRequestError
from engine.sampling_params import SamplingParams
from server.protocol.sampling import SamplingBody

Prompt: TypeAlias = str | list[int]
MAX_PROMPTS = 1024


def _as_prompts(value: Any) -> list[Prompt]:
    """The prompts of a request, from the four forms that OpenAI allows."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"must hold at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in value) or all(isinstance(item, list) and item and _are_ids(item) for item in value):
        return value
    raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists, none of them empty")


def _are_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)


class CompletionRequest(SamplingBody):
    """The implemented parameters of a completion. OpenAI's default of 16 tokens holds here too."""

    prompt: Annotated[list[Prompt], PlainValidator(_as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]])]
    echo: bool = False
    max_tokens: Annotated[int, Field(ge=0)] = 16  # 0: the prompt alone, for scoring
    logprobs: int | None = None
    add_special_tokens: bool = True
    best_of: int | None = None

    def for_prompt(self, params: SamplingParams, room: int) -> SamplingParams:
        """The same settings for a prompt that leaves `room` tokens: the default of max_tokens, which nobody asked for, gives way."""
        if "max_tokens" in self.model_fields_set or not 1 <= room < self.max_tokens:
            return params
        return msgspec.structs.replace(params, max_tokens=room)

    def check_streaming(self) -> None:
        super().check_streaming()
        if self.stream and self.best_of not in (None, self.n):
            raise InvalidRequestError("best_of above n cannot be streamed: which are the best is known at the end", param="best_of")

    def sampling_params(
        self, defaults: dict[str, Any], vocab_size: int, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        params = super().sampling_params(defaults, vocab_size, max_tokens, logprobs, prompt_logprobs)
        return msgspec.structs.replace(params, best_of=self.best_of)

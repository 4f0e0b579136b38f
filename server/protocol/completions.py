"""The body of POST /v1/completions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from pydantic import Field, PlainValidator

from engine.errors import InvalidRequestError
from engine.sampling_params import SamplingParams
from server.protocol.prompts import Prompt, PromptForms, as_prompts
from server.protocol.sampling import SamplingBody

MAX_PROMPTS = 1024


class CompletionRequest(SamplingBody):
    """The implemented parameters of a completion. OpenAI's default of 16 tokens holds here too."""

    prompt: Annotated[list[Prompt], PlainValidator(partial(as_prompts, most=MAX_PROMPTS), json_schema_input_type=PromptForms)]
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

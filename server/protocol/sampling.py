"""The parameters that chat and completions have in common, and the SamplingParams that they make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from engine.errors import InvalidRequestError
from engine.logits_processors import NamedLogitsProcessor
from engine.sampling_params import RepetitionDetection, SamplingParams
from engine.structured_outputs import StructuredOutputs
from server.limits import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from server.protocol.body import RequestBody, TokenIds
from server.protocol.structure import ResponseFormat, StructuredOutputsBody

_Stop = str | Annotated[list[Annotated[str, Field(max_length=MAX_STOP_LENGTH)]], Field(max_length=MAX_STOP_STRINGS)]
_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]

# Keys of generation_config.json that are sampling parameters here; the file's other keys concern other programs.
_DEFAULTABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _with_token_ids(value: Any) -> Any:
    """A bias for each token: JSON can only spell the tokens' ids as strings."""
    if not isinstance(value, dict):
        raise ValueError("must be an object from token ids to numbers")
    if wrong := [key for key in value if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10)]:
        raise ValueError(f"must have token ids as its keys, but has {wrong[0][:40]!r}")
    return {int(key): bias for key, bias in value.items()}


def _of_bounded_length(texts: list[str]) -> list[str]:
    # They are looked for after each token, which takes the longer the longer they are.
    if too_long := [text for text in texts if len(text) > MAX_STOP_LENGTH]:
        raise ValueError(f"must hold texts of at most {MAX_STOP_LENGTH} characters, but one has {len(too_long[0])}")
    return texts


class RepetitionDetectionBody(RequestBody):
    """When a sequence that repeats itself is ended: its newest tokens are one pattern, min_count times in a row."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 4

    def settings(self) -> RepetitionDetection:
        return RepetitionDetection(max_pattern_size=self.max_pattern_size, min_pattern_size=self.min_pattern_size, min_count=self.min_count)


class StreamOptions(RequestBody):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None  # hides token lengths from eavesdroppers at OpenAI; no effect here


class LogitsProcessorBody(RequestBody):
    """A logits processor with what it is to be made with, as vLLM writes it."""

    qualname: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


def _named_processor(body: str | LogitsProcessorBody) -> NamedLogitsProcessor:
    return NamedLogitsProcessor(body) if isinstance(body, str) else NamedLogitsProcessor(body.qualname, body.kwargs)


class SamplingBody(RequestBody):
    """Bodies that ask for generated text. None means that the client left the parameter out."""

    model: str | None = None
    n: int = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], BeforeValidator(_with_token_ids)] = Field(default_factory=dict)
    allowed_token_ids: TokenIds | None = None
    bad_words: list[str] = Field(default_factory=list)
    logits_processors: list[str | LogitsProcessorBody] = Field(default_factory=list)
    repetition_detection: RepetitionDetectionBody | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsBody | None = None
    seed: int | None = None
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    min_tokens: _Int32 = 0
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: _Int32 = 0
    user: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    return_token_ids: bool = False

    @field_validator("stop", mode="before", json_schema_input_type=_Stop)
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        return _of_bounded_length(stops)

    @field_validator("bad_words")
    @classmethod
    def _bad_words_are_short(cls, value: list[str]) -> list[str]:
        return _of_bounded_length(value)

    @property
    def end_user(self) -> str | None:
        """Who the client says its user is."""
        return self.user

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def check_streaming(self) -> None:
        """Raises InvalidRequestError for parameters that streaming, or its absence, rules out."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
        if self.stream and self.use_beam_search:
            raise InvalidRequestError(
                "beam search cannot be streamed: which beams are the best is known at the end", param="use_beam_search"
            )

    @property
    def constraining_parameter(self) -> str:
        """The name of the parameter by which the answer is constrained."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    def constraint(self) -> StructuredOutputs | None:
        """What the answer must be, if anything. Raises InvalidRequestError for a contradiction."""
        asked = [body for body in (self.response_format, self.structured_outputs) if body is not None]
        try:
            constraints = [constraint for body in asked if (constraint := body.constraint()) is not None]
        except InvalidRequestError as refusal:
            raise InvalidRequestError(str(refusal), self.constraining_parameter, refusal.code) from refusal
        if len(constraints) > 1:
            raise InvalidRequestError("response_format and structured_outputs exclude each other", param="structured_outputs")
        return constraints[0] if constraints else None

    def sampling_params(
        self, defaults: dict[str, Any], vocab_size: int, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """What the engine is asked for. Raises InvalidRequestError naming the first parameter that is out of its range."""
        _check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        _check_token_ids("logit_bias", self.logit_bias, vocab_size)
        _check_token_ids("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        chosen = {name: getattr(self, name) for name in _DEFAULTABLE if getattr(self, name) is not None}
        chosen = {**defaults, **chosen}
        if chosen.get("top_k") == -1:
            chosen["top_k"] = 0
        return SamplingParams(
            n=self.n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            named_logits_processors=tuple(map(_named_processor, self.logits_processors)),
            repetition_detection=None if self.repetition_detection is None else self.repetition_detection.settings(),
            structured_outputs=self.constraint(),
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            use_beam_search=self.use_beam_search,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            skip_special_tokens=self.skip_special_tokens,
            **chosen,
        )


def _check_token_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f"{param} must be token ids from 0 to {vocab_size - 1}, but holds {token_id}", param=param)


def sampling_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a model's generation_config.json sets, checked. Raises InvalidRequestError for nonsense in it."""
    defaults = {name: generation_config[name] for name in _DEFAULTABLE if generation_config.get(name) is not None}
    SamplingParams(**defaults)
    return defaults

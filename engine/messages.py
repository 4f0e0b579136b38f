"""What travels between the API process and the engine process: msgspec structs as MessagePack, never pickle."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from engine.outputs import FinishReason, TokenLogprobs
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams
from engine.stats import EngineStats


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sequence to generate, or to pool. It holds everything that resumes it anywhere: prompt, tokens so far, and the seed."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int  # of 64 bits, fixed by the API process on arrival
    sample_index: int = 0  # which of the request's n sequences this is
    group_id: str | None = None  # the same for all sequences of a request that has several: they share the prompt's blocks
    max_tokens: int  # params.max_tokens, or what the context leaves
    arrival: int = 0  # order of arrival at the API process; smaller came first
    priority: int = 0  # smaller goes first
    tenant: str = ""  # whose request it is, where tenants take turns
    cache_salt: str | None = None  # only requests of one salt share cached blocks
    pooling: PoolingParams | None = None  # not None: nothing is generated, its end is the vector of its prompt
    generated_token_ids: list[int] = []  # delivered before the engine was restarted


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    request: EngineRequest


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: list[str]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run one of the engine's named utilities between two steps and answer with `CallResult`."""

    call_id: int
    method: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


ToEngine: TypeAlias = AddRequest | AbortRequests | Call | Shutdown


class SequenceOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step made for one sequence."""

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None  # one for each new token, when asked for
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the prompt's next tokens; the first token has none
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id, where one of `stop_token_ids` ended the sequence
    error: str | None = None  # with finish_reason "error": why
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache held
    first_scheduled: float | None = None  # with the first token: time.monotonic() when the sequence stopped waiting
    embedding: bytes | None = None  # of a pooled sequence, with its finish_reason: float32, little-endian


class StepOutputs(msgspec.Struct, frozen=True, tag="step"):
    outputs: list[SequenceOutput]
    stats: EngineStats


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The engine serves. Its numbers, for logs and metrics."""

    num_blocks: int
    block_size: int
    kernels: str  # name of the operation set
    load_seconds: float
    num_host_blocks: int = 0


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start, or a step raised: the process ends after this message."""

    kind: str  # name of the exception class
    message: str


class CallResult(msgspec.Struct, frozen=True, tag="result"):
    call_id: int
    value: Any = None
    error: str | None = None


FromEngine: TypeAlias = StepOutputs | EngineReady | EngineFailed | CallResult

"""One prompt's way through the engine: outputs pass by, and what the log and the metrics want of them is noted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.errors import EngineDeadError, InvalidRequestError
from engine.outputs import RequestOutput, TokenLogprobs
from engine.sampling_params import SamplingParams
from server.access.rate_limits import UNSTATED_TOKENS
from server.errors import ApiError
from server.observability.record import RequestRecord
from server.observability.transcript import Transcript
from server.protocol.embeddings import PooledBody
from server.protocol.sampling import SamplingBody
from server.service import Service


@dataclass(frozen=True)
class Terms:
    """On which terms a request is served, whatever it asks for."""

    priority: int = 0
    cache_salt: str | None = None
    tenant: str = ""  # whose turn it takes under the policy `fair`
    timeout: float | None = None  # seconds from the HTTP request's arrival

    def time_left(self, record: RequestRecord) -> float | None:
        """What is left of the timeout: reading and tokenizing a long prompt takes a while. A timer that is set for now still goes off."""
        return None if self.timeout is None else max(1e-3, record.started + self.timeout - time.perf_counter())


class Generation:
    """An async iterator over a request's output deltas. Leaving it early, aborts the request in the engine.

    Raises at once ApiError 429 when the caller's tokens per minute are used up, and InvalidRequestError or OverloadedError for what the
    engine refuses; while iterating RequestTimeoutError, EngineDeadError, or ApiError when the server ends the request itself.
    """

    def __init__(
        self,
        service: Service,
        record: RequestRecord,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str,
        terms: Terms,
    ) -> None:
        self.prompt_token_ids = prompt_token_ids
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None  # when asked for, from the first output on
        self._service = service
        self._record = record
        service.check_awake()
        charge(record, _most_tokens(len(prompt_token_ids), params, service.engine.max_model_len))
        self._stream = service.engine.generate(
            prompt_token_ids,
            params,
            request_id,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant,
            timeout=terms.time_left(record),
        )
        self._submitted = time.monotonic()  # the engine's clock
        if record.submitted is None:
            record.submitted, record.params = time.perf_counter(), params
        self._finished = False  # nothing is left to abort
        self._end: ApiError | None = None
        self._transcript = Transcript(request_id, service.tokenizer, prompt_token_ids) if service.config.log_requests else None
        record.prompt_tokens += len(prompt_token_ids)
        record.at_end.append(self._leave)  # an iterator that was never started runs no `finally` of its own
        service.running.add(self)

    def end_with(self, error: ApiError) -> None:
        """Make the iteration raise `error`, and abort the request."""
        self._end = error
        self._stream.abort()
        self._stream.fail(EngineDeadError(error.message))  # wakes whoever waits for the next output

    def _leave(self) -> None:
        self._service.running.discard(self)
        if self._transcript is not None:
            self._transcript.end()
            self._transcript = None
        if not self._finished:
            self._finished = True
            self._stream.abort()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        record, observe = self._record, self._service.metrics.inter_token.observe
        last: float | None = None
        try:
            async for output in self._stream:
                num_new = sum([len(sequence.token_ids) for sequence in output.outputs])
                if num_new:
                    now = time.perf_counter()
                    if last is not None:
                        for _ in range(num_new):
                            observe((now - last) / num_new)
                    elif record.first_token is None:
                        record.first_token = now
                        self._service.metrics.first_token.observe(now - record.started)
                    last = now
                    self.completion_tokens += num_new
                    record.completion_tokens += num_new
                if output.num_cached_tokens and not self.cached_tokens:
                    self.cached_tokens = output.num_cached_tokens
                    record.cached_tokens += output.num_cached_tokens
                if output.first_scheduled is not None and record.queue_seconds is None:
                    record.queue_seconds = max(0.0, output.first_scheduled - self._submitted)
                if output.prompt_logprobs is not None:
                    self.prompt_logprobs = output.prompt_logprobs
                for sequence in output.outputs:
                    if sequence.finish_reason == "abort":
                        raise self._end or ApiError(503, "the request was aborted by the server", code="request_aborted")
                    if sequence.finish_reason == "error":
                        raise ApiError(500, f"the answer could not be completed: {sequence.error}", code="generation_failed")
                    if sequence.finish_reason == "repetition":
                        # OpenAI's clients know no such reason.
                        sequence.finish_reason, sequence.stop_reason = "stop", "repetition_detected"
                    if sequence.finish_reason is not None:
                        record.finish_reasons.append(sequence.finish_reason)
                if self._transcript is not None:
                    self._transcript.add(output)
                yield output
            self._finished = True
        except EngineDeadError as error:
            raise self._end or error from None
        finally:
            self._leave()


def fit_prompt(token_ids: list[int], body: SamplingBody | PooledBody, max_model_len: int, max_tokens: int | None, param: str) -> list[int]:
    """The prompt after truncate_prompt_tokens, from the left. Raises InvalidRequestError for an empty one."""
    if not token_ids:
        raise InvalidRequestError(f"{param} is empty: there is nothing to go on from", param=param)
    keep = body.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep == -1:
        keep = max(1, max_model_len - (max_tokens or 1))
    if keep == 0:
        raise InvalidRequestError("truncate_prompt_tokens must be at least 1, or -1", param="truncate_prompt_tokens")
    return token_ids[-keep:]


def charge(record: RequestRecord, most: int) -> None:
    """Charge the caller for all the tokens that a prompt may cost, and settle with what the request did cost once it has ended."""
    if not record.allowance.limits_tokens:
        return
    record.allowance.take("tokens", most)
    if not record.charged_tokens:
        record.at_end.append(lambda: record.allowance.give_back(record.charged_tokens - record.prompt_tokens - record.completion_tokens))
    record.charged_tokens += most


def _most_tokens(prompt_tokens: int, params: SamplingParams, longest: int) -> int:
    answer_tokens = UNSTATED_TOKENS if params.max_tokens is None else params.max_tokens
    # What goes beyond the context is for the engine to refuse, with words of its own.
    return prompt_tokens + params.num_sequences * max(0, min(answer_tokens, longest - prompt_tokens))

"""Embeddings of a request's texts: each is a request to the engine of its own, and many are under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.errors import EngineDeadError
from engine.outputs import EmbeddingOutput
from engine.pooling_params import PoolingParams
from server.errors import ApiError
from server.generation import Terms, charge
from server.observability.record import RequestRecord
from server.service import Service

# Texts of one request that are with the engine at once: enough to fill its steps, and few enough to leave room for others.
_MOST_AT_ONCE = 64


class Embedding:
    """One text's way through the engine. Leaving it early aborts it there.

    Raises at once InvalidRequestError or OverloadedError for what the engine refuses.
    """

    def __init__(
        self, service: Service, record: RequestRecord, token_ids: list[int], params: PoolingParams, request_id: str, terms: Terms
    ) -> None:
        service.check_awake()
        self._service = service
        self._end: ApiError | None = None
        self._stream = service.engine.embed(
            token_ids,
            params,
            request_id,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant,
            timeout=terms.time_left(record),
        )
        service.running.add(self)

    def end_with(self, error: ApiError) -> None:
        """Make `result` raise `error`, and abort the request."""
        self._end = error
        self._stream.abort()
        self._stream.fail(EngineDeadError(error.message))

    async def result(self) -> EmbeddingOutput:
        """Raises RequestTimeoutError, EngineDeadError, or ApiError when the server ends the request itself or the engine cannot go on."""
        try:
            output = await anext(self._stream)
        except EngineDeadError as error:
            raise self._end or error from None
        finally:
            self._service.running.discard(self)
            self._stream.abort()
        if output.finish_reason != "stop":
            raise self._end or ApiError(500, f"the embedding could not be computed: {output.error or output.finish_reason}")
        return output


async def embed(
    service: Service, record: RequestRecord, prompts: Sequence[list[int]], params: PoolingParams, terms: Terms
) -> list[EmbeddingOutput]:
    """The embeddings of token ids, in their order. Raises what `Service.admit` and `Embedding` raise; then nothing is left running."""
    limits, most_waiting = service.config, service.engine.config.max_waiting_requests
    at_once = min(len(prompts), _MOST_AT_ONCE, limits.max_sequences_per_request, limits.max_pending_requests, most_waiting or _MOST_AT_ONCE)
    service.admit(record, at_once, 1)
    charge(record, sum(map(len, prompts)))
    outputs: dict[int, EmbeddingOutput] = {}
    left = iter(enumerate(prompts))

    async def work() -> None:
        for index, token_ids in left:
            outputs[index] = output = await Embedding(service, record, token_ids, params, f"{record.hex}-{index}", terms).result()
            record.prompt_tokens += len(token_ids)
            record.cached_tokens += output.num_cached_tokens

    workers = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [outputs[index] for index in range(len(prompts))]

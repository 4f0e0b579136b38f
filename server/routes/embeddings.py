"""POST /v1/embeddings, and what is made of embeddings' cosines: POST /v1/score and /v1/rerank."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Request

from engine.errors import InvalidRequestError
from engine.outputs import EmbeddingOutput
from engine.pooling_params import PoolingParams
from server.embedding import embed
from server.generation import fit_prompt
from server.observability.record import record_of
from server.protocol.embeddings import EmbeddingRequest, PooledBody, RerankRequest, ScoreRequest
from server.protocol.fates_embeddings import EMBEDDINGS, RERANK, SCORE
from server.protocol.prompts import Prompt
from server.routes.generate import answer_waiting, body_of, service_of, terms_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

router = APIRouter()


@router.post("/v1/embeddings", response_model=None)
async def create_embeddings(request: Request) -> Any:
    """A vector for each text."""
    body = await body_of(request, EmbeddingRequest, EMBEDDINGS)
    model, params = service_of(request).resolve_model(body.model), body.pooling_params()

    async def answer() -> dict[str, Any]:
        outputs = await _embed(request, body, body.input, params, "input")
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(output, body.encoding_format)}
            for index, output in enumerate(outputs)
        ]
        return {"object": "list", "data": data, "model": model, "usage": _usage(outputs)}

    return await answer_waiting(request, answer())


@router.post("/v1/score", response_model=None)
@router.post("/score", response_model=None, include_in_schema=False)
async def score(request: Request) -> Any:
    """The cosine of one text with each of several, or of pairs of texts."""
    record = record_of(request)
    body = await body_of(request, ScoreRequest, SCORE)
    model, num_pairs = service_of(request).resolve_model(body.model), len(body.text_2)
    if len(body.text_1) not in (1, num_pairs):
        raise InvalidRequestError(f"text_1 must be one text, or as many as text_2 ({num_pairs}), but is {len(body.text_1)}", param="text_1")

    async def answer() -> dict[str, Any]:
        outputs = await _embed(request, body, [*body.text_1, *body.text_2], PoolingParams(), "text_1")
        firsts, seconds = outputs[:-num_pairs], outputs[-num_pairs:]
        scores = (_matrix(firsts) * _matrix(seconds)).sum(axis=1).tolist()
        data = [{"index": index, "object": "score", "score": one} for index, one in enumerate(scores)]
        created = int(time.time())
        return {"id": f"score-{record.hex}", "object": "list", "created": created, "model": model, "data": data, "usage": _usage(outputs)}

    return await answer_waiting(request, answer())


@router.post("/v1/rerank", response_model=None)
@router.post("/rerank", response_model=None, include_in_schema=False)
@router.post("/v2/rerank", response_model=None, include_in_schema=False)
async def rerank(request: Request) -> Any:
    """The documents by their cosine with the query, best first; of equals, the earlier first."""
    record = record_of(request)
    body = await body_of(request, RerankRequest, RERANK)
    model = service_of(request).resolve_model(body.model)

    async def answer() -> dict[str, Any]:
        outputs = await _embed(request, body, [body.query, *body.documents], PoolingParams(), "documents")
        scores = (_matrix(outputs[1:]) @ _matrix(outputs[:1])[0]).tolist()
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        results = [{"index": index, "relevance_score": scores[index]} for index in best]
        if body.return_documents:
            results = [{**result, "document": {"text": body.documents[index]}} for index, result in zip(best, results, strict=True)]
        return {"id": f"rerank-{record.hex}", "model": model, "usage": _usage(outputs), "results": results}

    return await answer_waiting(request, answer())


async def _embed(request: Request, body: PooledBody, texts: Sequence[Prompt], params: PoolingParams, param: str) -> list[EmbeddingOutput]:
    service = service_of(request)
    encoded = iter(await service.texts.encode([text for text in texts if isinstance(text, str)], body.add_special_tokens, param))
    prompts = [next(encoded) if isinstance(text, str) else text for text in texts]
    prompts = [fit_prompt(prompt, body, service.engine.max_model_len, 0, param) for prompt in prompts]
    return await embed(service, record_of(request), prompts, params, terms_of(request, body))


def _encoded(output: EmbeddingOutput, encoding_format: str) -> Any:
    if encoding_format == "base64":
        return base64.b64encode(output.embedding).decode()
    return msgspec.Raw(msgspec.json.encode(output.vector.tolist()))


def _matrix(outputs: Sequence[EmbeddingOutput]) -> NDArray[np.float64]:
    """[texts, dimensions]"""
    import numpy as np  # not above: it would cost a tenth of a second at start-up

    return np.stack([output.vector for output in outputs]).astype(np.float64)


def _usage(outputs: Sequence[EmbeddingOutput]) -> dict[str, int]:
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}

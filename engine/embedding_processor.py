"""From the engine's vector of a prompt to what a caller reads: the OutputProcessor's counterpart for embeddings."""

from __future__ import annotations

from engine.messages import EngineRequest, SequenceOutput
from engine.outputs import EmbeddingOutput


class EmbeddingProcessor:
    """One request for an embedding. Feed it its SequenceOutput."""

    def __init__(self, request: EngineRequest) -> None:
        self.request_id = request.request_id
        self.finished = False
        self._request = request

    @property
    def unfinished_ids(self) -> list[str]:
        return [] if self.finished else [self.request_id]

    def resumed(self, sequence_id: str) -> EngineRequest:
        """What makes a new engine compute it: the request as it was."""
        return self._request

    def process(self, output: SequenceOutput) -> tuple[EmbeddingOutput | None, bool]:
        """The vector, or why there is none. Nothing ever stops it early, so the engine need not be told."""
        if self.finished or output.finish_reason is None:
            return None, False
        self.finished = True
        embedding = EmbeddingOutput(
            request_id=self.request_id,
            prompt_token_ids=self._request.prompt_token_ids,
            embedding=output.embedding or b"",
            finish_reason=output.finish_reason,
            num_cached_tokens=output.num_cached_tokens,
            error=output.error,
        )
        return embedding, False

    def merge(self, older: EmbeddingOutput, newer: EmbeddingOutput) -> EmbeddingOutput:
        raise AssertionError("a request has one embedding")

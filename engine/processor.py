"""What generated text and embeddings have in common on their way from the engine to a caller."""

from __future__ import annotations

from typing import Protocol, TypeVar

from engine.messages import EngineRequest, SequenceOutput


class Finishable(Protocol):
    finished: bool  # nothing more comes


Output = TypeVar("Output", bound=Finishable)


class Processor(Protocol[Output]):
    """Makes one request's outputs of the engine's, and knows what hands the request to another engine."""

    request_id: str

    @property
    def finished(self) -> bool:
        """Nothing more comes."""
        ...

    @property
    def unfinished_ids(self) -> list[str]:
        """The engine's ids of the sequences that have not ended."""
        ...

    def resumed(self, sequence_id: str) -> EngineRequest:
        """What makes a new engine go on with a sequence from where it is."""
        ...

    def process(self, output: SequenceOutput) -> tuple[Output | None, bool]:
        """What is new, if anything, and whether it ended the sequence, so that the engine must be told."""
        ...

    def merge(self, older: Output, newer: Output) -> Output:
        """Two outputs that nobody has taken, as one."""
        ...

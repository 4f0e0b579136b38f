"""A sequence's deltas, collected for an answer that is given whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.outputs import CompletionOutput, TokenLogprobs


@dataclass
class CollectedSequence:
    """What one choice has come to so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, delta: CompletionOutput) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

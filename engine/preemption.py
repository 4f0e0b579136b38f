"""Whether a sequence that must give its blocks up is swapped out or computed again: whichever is estimated to cost less.

Kwon et al. (2023, section 4.5) name both ways and compare them (section 7.3): copying wins for long sequences and large blocks,
computing for short ones and slow links. Both speeds are measured here, as they differ by orders of magnitude between machines.
"""

from __future__ import annotations

from typing import Literal

from engine.step import StepInput, StepOutput

PreemptionMode = Literal["auto", "swap", "recompute"]

# Until both speeds are known, longer sequences are swapped. A sequence of this length is computed again in about one step of the CPU's
# default token budget.
LONG_SEQUENCE = 256  # tokens
_WEIGHT = 0.2  # of the newest measurement
_LEAST_PREFILL = 16  # tokens of steps that tell how fast prompts are computed
_PREFILL_SHARE = 0.75  # of their tokens, that belong to prompts


class Preemption:
    """The choice, and the running averages that it rests on."""

    def __init__(self, mode: PreemptionMode = "auto", block_size: int = 16) -> None:
        self.mode = mode
        self.seconds_per_block: float | None = None  # of a copy between device and host, one way
        self.seconds_per_token: float | None = None  # of computing a prompt
        self._block_size = block_size
        # Of the steps since the last that sampled: only a token that comes back tells that a device has done what it was given.
        self._num_tokens = 0
        self._num_prefill_tokens = 0
        self._seconds = 0.0

    def prefers_swap(self, num_tokens: int) -> bool:
        """For a sequence with `num_tokens` computed."""
        if self.mode != "auto":
            return self.mode == "swap"
        if self.seconds_per_block is None or self.seconds_per_token is None:
            return num_tokens > LONG_SEQUENCE
        num_blocks = -(-num_tokens // self._block_size)
        return 2 * num_blocks * self.seconds_per_block < num_tokens * self.seconds_per_token

    def measure(self, step: StepInput, output: StepOutput) -> None:
        """Learn from a step that was executed."""
        if output.num_timed_swaps:
            self.seconds_per_block = _average(self.seconds_per_block, output.swap_seconds / output.num_timed_swaps)
        num_tokens = sum(step.query_lens)
        self._num_tokens += num_tokens
        self._num_prefill_tokens += num_tokens - step.query_lens.count(1)
        self._seconds += output.compute_seconds
        if True in step.samples:
            if self._seconds and self._num_prefill_tokens >= max(_LEAST_PREFILL, _PREFILL_SHARE * self._num_tokens):
                self.seconds_per_token = _average(self.seconds_per_token, self._seconds / self._num_tokens)
            self._num_tokens, self._num_prefill_tokens, self._seconds = 0, 0, 0.0


def _average(known: float | None, newest: float) -> float:
    return newest if known is None else known + _WEIGHT * (newest - known)

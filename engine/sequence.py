"""A sequence: one prompt and the tokens generated for it, and how much of it is in the KV cache."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from engine.messages import EngineRequest
from engine.outputs import FinishReason
from engine.repetition import RepetitionDetector

if TYPE_CHECKING:
    from engine.beam_search import BeamSearch


class SequenceStatus(enum.Enum):
    WAITING = enum.auto()  # new, or preempted: holds no slot, and no blocks but those of host memory when it is swapped out
    RUNNING = enum.auto()  # holds blocks, and a slot in the worker's tables
    FINISHED = enum.auto()


class Sequence:
    """The scheduler's view of one sequence.

    Tokens whose values are still being computed are counted (`num_pending_tokens`) but not known, so that a step can be scheduled while
    the one before it runs.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.request_id = request.request_id
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.status = SequenceStatus.WAITING
        self.token_ids: list[int] = request.prompt_token_ids + request.generated_token_ids  # all whose values are known
        self.num_pending_tokens = 0  # sampled by steps whose results have not come back
        self.num_computed_tokens = 0  # KV of positions [0, n) is in the cache, or is written by a step under way
        self.block_table: list[int] = []  # block ids; entry i holds positions [i * block_size, (i + 1) * block_size)
        self.block_hashes: list[bytes] = []  # of the full blocks of token_ids, chained; grows on demand
        self.num_registered_blocks = 0  # leading entries of block_table that are in the prefix cache under their hash
        self.host_table: list[int] = []  # host blocks that hold positions [0, num_computed_tokens) while it is swapped out
        self.slot: int | None = None  # row in the worker's tables while running
        self.rank: tuple[int, ...] = ()  # among the running ones, given by the waiting queue: the largest is preempted first
        self.num_cached_tokens: int | None = None  # prompt tokens found in the prefix cache at first admission
        self.num_host_hits = 0  # tokens that the latest admission found in host memory only
        self.num_prompt_logprobs_sent = 0  # prompt log probabilities already delivered
        self.num_preemptions = 0
        self.first_scheduled: float | None = None  # time.monotonic() of the first step that it was in
        self.repetition = _detector(request)
        self.search: BeamSearch | None = None  # of which it is a beam
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None

    @property
    def num_tokens(self) -> int:
        """All tokens, those with values still unknown included."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Generated tokens whose values are known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_shareable_tokens(self) -> int:
        """Leading tokens whose KV a sibling's blocks may hold for it: the prompt, but never its own last token, whose logits are needed."""
        return 0 if self.needs_every_prompt_token else min(self.num_prompt_tokens, len(self.token_ids) - 1)

    @property
    def is_paused(self) -> bool:
        """A beam that waits for its search: for the values of its step, or for its first token."""
        return self.search is not None and (self.num_pending_tokens > 0 or not self.block_table)

    @property
    def is_swapped(self) -> bool:
        """It waits with its KV in host blocks, and goes on from there."""
        return bool(self.host_table)

    @property
    def is_decoding(self) -> bool:
        """Only its newest token is not in the cache yet."""
        num_tokens = self.num_tokens
        return num_tokens - self.num_computed_tokens == 1 and num_tokens > self.num_prompt_tokens and not self.is_paused

    @property
    def is_prefilling(self) -> bool:
        return not self.is_decoding and not self.is_paused

    @property
    def reached_max_tokens(self) -> bool:
        """It needs no further step, whatever the values of its pending tokens are."""
        return self.num_tokens - self.num_prompt_tokens >= self.request.max_tokens

    @property
    def has_aged(self) -> bool:
        """It once waited so long that it started before its turn."""
        return self.rank[:1] == (0,)

    def restart(self) -> None:
        """Forget all generated tokens. It must hold no blocks."""
        assert not self.block_table
        self.token_ids = list(self.request.prompt_token_ids)
        self.block_hashes = []

    @property
    def needs_every_prompt_token(self) -> bool:
        """Something is made of each position of its prompt, so that keys and values which others computed are of no use."""
        pooling = self.request.pooling
        return self.wants_prompt_logprobs or (pooling is not None and pooling.needs_every_token)

    @property
    def may_be_swapped(self) -> bool:
        """Whether it can go on from keys and values alone. The beams of a search share most of theirs, which swapping would not."""
        pooling = self.request.pooling
        return self.search is None and not (pooling is not None and pooling.needs_every_token)

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.request.params.prompt_logprobs is not None and self.num_prompt_logprobs_sent < self.num_prompt_tokens - 1


def _detector(request: EngineRequest) -> RepetitionDetector | None:
    """What notices that the sequence repeats itself, where that is to end it."""
    settings = request.params.repetition_detection
    if settings is None:
        return None
    detector = RepetitionDetector(settings)
    for token_id in request.generated_token_ids:
        detector.append(token_id)
    return detector

"""What the scheduler tells the worker for one step, and what comes back.

Small deltas, as a worker keeps each running sequence in a slot of its own tables: a sequence's tokens and settings cross once, then
only new block ids and counts do. One worker, several tensor-parallel ones or remote ones take the same messages.
"""

from __future__ import annotations

import msgspec

from engine.outputs import TokenLogprobs
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams


class NewSequence(msgspec.Struct, frozen=True):
    """A sequence that takes a slot: new, resumed after a preemption, or a beam that goes on as another. What was there is forgotten."""

    slot: int
    token_ids: list[int]  # prompt and generated tokens so far
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    sample_index: int
    block_ids: list[int]
    prompt_logprobs: int | None  # how many to give at each prompt position; None: none are wanted (any more)
    num_candidates: int | None = None  # for a beam: how many log probabilities its search chooses from
    pooling: PoolingParams | None = None  # its hidden states become a vector, and nothing is drawn


class BlockUpdate(msgspec.Struct, frozen=True):
    """Entries of a block table that are new or changed."""

    slot: int
    first_index: int
    block_ids: list[int]


class StepInput(msgspec.Struct, frozen=True):
    """One step. The four lists of the scheduled sequences run side by side."""

    new_sequences: list[NewSequence]
    block_updates: list[BlockUpdate]  # apply after new_sequences
    block_copies: list[tuple[int, int]]  # (source, destination), in this order, before anything is computed
    slots: list[int]  # the scheduled sequences, each once
    starts: list[int]  # position of the first token that the step computes
    query_lens: list[int]  # tokens that the step computes
    samples: list[bool]  # whether the last computed token is the sequence's newest, so that the next one is drawn, or its vector is made
    # Whole blocks between device and host memory. All that leaves goes first, then what arrives, then block_copies, then the step computes:
    # a device block may be filled anew by the step that copies its content out.
    swap_outs: list[tuple[int, int]] = []  # (device block, host block)
    swap_ins: list[tuple[int, int]] = []  # (host block, device block)


class StepOutput(msgspec.Struct, frozen=True):
    """The results, side by side with the scheduled sequences of the step."""

    token_ids: list[list[int]]  # zero or more new tokens for each
    logprobs: list[list[TokenLogprobs] | None]  # one for each new token, where asked for
    prompt_logprobs: list[list[TokenLogprobs] | None]  # of prompt tokens start + 1 ... start + query_len, where asked for
    errors: dict[int, str] = {}  # by place in the step: why this sequence, and no other, cannot go on; it has no new tokens then
    pooled: dict[int, bytes] = {}  # by place in the step: the vector of a pooled sequence whose prompt is complete, float32 little-endian
    compute_seconds: float = 0.0  # the forward pass and the sampler
    sample_seconds: float = 0.0  # of these, the sampler; on a GPU it waits for what is left of the forward pass
    swap_seconds: float = 0.0  # copies between device and host that have ended since the step before
    num_timed_swaps: int = 0  # the blocks that these moved
    started: float = 0.0  # the worker's time.monotonic() when it took the step up
    ended: float = 0.0

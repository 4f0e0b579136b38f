from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.sampling_params import SamplingParams
from engine.step import BlockUpdate, NewSequence, StepInput

NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE, MAX_TOKENS = 6, 50, 4, 40
MAX_BLOCKS = 13


def new_sequence(slot: int, token_ids: list[int], block_ids: list[int], prompt_logprobs: int | None = None) -> NewSequence:
    return NewSequence(
        slot=slot,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(),
        seed=0,
        sample_index=0,
        block_ids=block_ids,
        prompt_logprobs=prompt_logprobs,
    )


def step_of(scheduled: list[tuple[int, int, int, bool]], updates: list[BlockUpdate] | None = None) -> StepInput:
    """Each scheduled sequence is (slot, start, query_len, samples)."""
    slots, starts, lens, samples = (list(column) for column in zip(*scheduled, strict=True))
    return StepInput(
        new_sequences=[], block_updates=updates or [], block_copies=[], slots=slots, starts=starts, query_lens=lens, samples=samples
    )


def new_buffers() -> BatchBuffers:
    return BatchBuffers(MAX_TOKENS, NUM_SLOTS, MAX_BLOCKS, BLOCK_SIZE, torch.device("cpu"))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int, int, bool]]:
    slots = draw(st.permutations(range(NUM_SLOTS)))[: draw(st.integers(1, NUM_SLOTS))]
    scheduled, budget = [], MAX_TOKENS - NUM_SLOTS
    for slot in slots:
        start = draw(st.integers(0, MAX_MODEL_LEN - 1))
        query_len = draw(st.integers(1, max(1, min(budget, MAX_MODEL_LEN - start))))
        budget -= query_len - 1
        scheduled.append((slot, start, query_len, draw(st.booleans())))
    return scheduled


BUFFERS = new_buffers()  # one for all examples: what a step leaves behind must not reach the next


@given(steps(), st.integers(0, 2**31), st.booleans())
@settings(deadline=None)
def test_a_batch_says_of_each_token_what_it_is_and_where_it_goes(
    scheduled: list[tuple[int, int, int, bool]], seed: int, with_prompt_rows: bool
) -> None:
    rng = np.random.default_rng(seed)
    tables = SlotTables(NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE)
    tokens = rng.integers(0, 1000, (NUM_SLOTS, MAX_MODEL_LEN))
    blocks = rng.permutation(NUM_SLOTS * MAX_BLOCKS).reshape(NUM_SLOTS, MAX_BLOCKS)
    for slot in range(NUM_SLOTS):
        tables.admit(new_sequence(slot, tokens[slot].tolist(), blocks[slot].tolist()))
    num_tokens = sum(query_len for _, _, query_len, _ in scheduled)
    prompt_rows = rng.integers(0, num_tokens, 3) if with_prompt_rows else None

    batch = BUFFERS.fill(tables, StepArrays.of(step_of(scheduled)), prompt_rows)

    expected = [(slot, position) for slot, start, query_len, _ in scheduled for position in range(start, start + query_len)]
    assert (batch.num_tokens, batch.num_seqs) == (len(expected), len(scheduled))
    assert batch.max_query_len == max(query_len for _, _, query_len, _ in scheduled)
    assert batch.max_seq_len == max(start + query_len for _, start, query_len, _ in scheduled)
    assert batch.positions.tolist() == [position for _, position in expected]
    assert batch.token_ids.tolist() == [tokens[slot, position] for slot, position in expected]
    places = [blocks[slot, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for slot, position in expected]
    assert batch.slot_mapping.tolist() == places
    ends = np.cumsum([query_len for _, _, query_len, _ in scheduled]).tolist()
    assert batch.query_start_loc.tolist() == [0, *ends]
    assert batch.seq_lens.tolist() == [start + query_len for _, start, query_len, _ in scheduled]
    for row, (slot, start, query_len, _) in enumerate(scheduled):
        num_blocks = -(-(start + query_len) // BLOCK_SIZE)
        assert batch.block_tables[row, :num_blocks].tolist() == blocks[slot, :num_blocks].tolist()
    sampled = [end - 1 for end, (_, _, _, samples) in zip(ends, scheduled, strict=True) if samples]
    assert batch.logits_indices.tolist() == sampled + ([] if prompt_rows is None else prompt_rows.tolist())


def test_a_batch_lives_at_the_same_addresses_in_every_step() -> None:
    tables, buffers = SlotTables(NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE), new_buffers()
    names = ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "block_tables", "logits_indices")
    batches = [
        buffers.capacity,
        buffers.fill(tables, StepArrays.of(step_of([(0, 0, 9, True)]))),
        buffers.fill(tables, StepArrays.of(step_of([(1, 3, 1, True), (0, 9, 1, True)]))),
    ]
    for name in names:
        assert len({getattr(batch, name).data_ptr() for batch in batches}) == 1, name
    assert (buffers.capacity.num_tokens, buffers.capacity.num_seqs) == (MAX_TOKENS, NUM_SLOTS)


def test_changed_entries_of_a_block_table_are_taken_over() -> None:
    tables = SlotTables(NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE)
    tables.admit(new_sequence(2, [1] * 10, [5, 6, 7]))
    tables.apply(step_of([(2, 0, 1, False)], [BlockUpdate(2, 1, [30]), BlockUpdate(2, 3, [40, 41])]))
    assert tables.block_tables[2, :5].tolist() == [5, 30, 7, 40, 41]
    assert not tables.block_tables[[0, 1, 3, 4, 5]].any()


def test_a_slot_takes_over_what_the_new_sequence_wants() -> None:
    tables = SlotTables(NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE)
    tables.admit(new_sequence(1, [1, 2, 3], [0], prompt_logprobs=4))
    assert (tables.num_prompt_tokens[1], tables.num_prompt_logprobs[1]) == (3, 4)
    tables.admit(new_sequence(1, [9], [3]))
    assert (tables.num_prompt_tokens[1], tables.num_prompt_logprobs[1]) == (1, -1)
    assert tables.token_ids[1, 0] == 9


def test_a_sequence_of_the_full_context_fits_with_the_token_after_it() -> None:
    tables = SlotTables(NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE)
    tables.admit(new_sequence(0, list(range(MAX_MODEL_LEN)), list(range(MAX_BLOCKS))))
    batch = new_buffers().fill(tables, StepArrays.of(step_of([(0, MAX_MODEL_LEN - 1, 1, True)])))
    assert batch.token_ids.tolist() == [MAX_MODEL_LEN - 1]
    tables.token_ids[0, MAX_MODEL_LEN] = 7  # drawn by that step

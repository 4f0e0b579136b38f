from __future__ import annotations

import pytest

from engine.block_manager import BlockManager
from engine.free_list import Block, FreeList
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

BLOCK_SIZE = 4


def new_manager(num_blocks: int = 16, enable_prefix_caching: bool = True, salt: bytes = b"salt") -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching, salt)


def new_sequence(token_ids: list[int], cache_salt: str | None = None, prompt_logprobs: int | None = None) -> Sequence:
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    return Sequence(EngineRequest(request_id="r", prompt_token_ids=token_ids, params=params, seed=0, max_tokens=99, cache_salt=cache_salt))


def compute(manager: BlockManager, sequence: Sequence, num_tokens: int | None = None, step_done: bool = True) -> list[int]:
    """As if a step had computed the sequence's next tokens (all of them by default)."""
    sequence.num_computed_tokens = len(sequence.token_ids) if num_tokens is None else sequence.num_computed_tokens + num_tokens
    return manager.register(sequence, step_done)


def serve(manager: BlockManager, token_ids: list[int], cache_salt: str | None = None) -> list[int]:
    """Admit, compute and release a sequence. Returns the blocks that it had."""
    sequence = new_sequence(token_ids, cache_salt)
    assert manager.admit(sequence)
    compute(manager, sequence)
    table = list(sequence.block_table)
    manager.release(sequence)
    manager.check([])
    return table


def hits(manager: BlockManager, token_ids: list[int], cache_salt: str | None = None) -> int:
    """The tokens that a new sequence would find in the cache."""
    sequence = new_sequence(token_ids, cache_salt)
    assert manager.admit(sequence)
    found = sequence.num_computed_tokens
    manager.release(sequence)
    return found


# -- the pool


def test_every_block_is_free_referenced_or_cached_and_they_add_up() -> None:
    manager = new_manager(8)
    assert (manager.num_free, manager.num_referenced, manager.num_cached) == (8, 0, 0)
    sequence = new_sequence(list(range(10)))
    assert manager.admit(sequence)
    assert (manager.num_free, manager.num_referenced, manager.num_cached) == (5, 3, 0)
    compute(manager, sequence)
    manager.release(sequence)
    assert (manager.num_free, manager.num_referenced, manager.num_cached) == (6, 0, 2)  # the third block was not full


def test_a_sequence_gets_the_blocks_that_its_tokens_need_and_one_more_when_it_grows_past_them() -> None:
    manager = new_manager()
    sequence = new_sequence(list(range(7)))
    assert manager.admit(sequence)
    assert len(sequence.block_table) == 2
    for length, num_blocks in ((8, 2), (9, 3), (12, 3), (13, 4)):
        sequence.token_ids.extend(range(length - len(sequence.token_ids)))
        assert manager.grow(sequence) is not None
        assert len(sequence.block_table) == num_blocks


def test_growing_fails_and_changes_nothing_when_no_block_is_left() -> None:
    manager = new_manager(2)
    sequence = new_sequence(list(range(8)))
    assert manager.admit(sequence)
    sequence.token_ids.append(1)
    assert manager.grow(sequence) is None
    assert len(sequence.block_table) == 2
    manager.check([sequence])


def test_admission_that_does_not_fit_or_would_leave_too_few_spare_changes_nothing() -> None:
    manager = new_manager(4)
    serve(manager, list(range(9)))
    for num_tokens, num_spare in ((17, 0), (13, 1), (9, 2)):
        sequence = new_sequence(list(range(num_tokens)))
        assert not manager.admit(sequence, num_spare)
        assert sequence.block_table == []
        assert manager.num_referenced == 0
        manager.check([])
    assert manager.admit(new_sequence(list(range(9))), num_spare=1)


def test_worthless_blocks_are_used_before_cached_ones() -> None:
    manager = new_manager(6)
    serve(manager, [1] * 4 + [2] * 4)
    serve(manager, [9])
    for i in range(4):
        serve(manager, [i])
    assert manager.num_evictions == 0
    assert hits(manager, [1] * 4 + [2] * 4 + [3]) == 8


# -- the prefix cache


@pytest.mark.parametrize("num_tokens", range(1, 14))
def test_a_repeated_prompt_finds_all_full_blocks_that_leave_its_last_token_to_compute(num_tokens: int) -> None:
    manager = new_manager()
    prompt = list(range(100, 100 + num_tokens))
    serve(manager, prompt)
    assert hits(manager, prompt) == (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_prefix_is_found_up_to_the_first_block_that_differs() -> None:
    manager = new_manager()
    serve(manager, list(range(16)))
    assert hits(manager, [*range(8), 99, *range(9, 16), 5]) == 8
    assert hits(manager, [99, *range(1, 16), 5]) == 0


def test_a_block_counts_with_all_tokens_before_it_not_alone() -> None:
    manager = new_manager()
    serve(manager, [1] * 4 + [2] * 4 + [3] * 4)
    assert hits(manager, [2] * 4 + [3] * 4 + [9]) == 0


def test_blocks_of_generated_tokens_are_found_by_the_next_turn() -> None:
    manager = new_manager()
    sequence = new_sequence([1, 2, 3])
    assert manager.admit(sequence)
    compute(manager, sequence)
    for token_id in (4, 5, 6, 7, 8, 9):
        sequence.token_ids.append(token_id)
        assert manager.grow(sequence) is not None
        compute(manager, sequence)
    manager.release(sequence)
    assert hits(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21]) == 8


def test_a_sampled_token_whose_value_is_not_known_keeps_its_block_out_of_the_cache() -> None:
    manager = new_manager()
    sequence = new_sequence([1, 2, 3])
    assert manager.admit(sequence)
    sequence.num_pending_tokens = 1
    sequence.num_computed_tokens = 4  # the step that computes position 3 is under way, and nobody knows the token there
    manager.register(sequence, step_done=False)
    assert sequence.num_registered_blocks == 0
    sequence.num_pending_tokens = 0
    sequence.token_ids.append(4)
    manager.register(sequence, step_done=True)
    assert sequence.num_registered_blocks == 1


def test_only_requests_of_one_cache_salt_share() -> None:
    manager = new_manager()
    prompt = list(range(9))
    serve(manager, prompt, cache_salt="a")
    assert hits(manager, prompt, cache_salt="a") == 8
    assert hits(manager, prompt, cache_salt="b") == 0
    assert hits(manager, prompt) == 0


def test_a_salt_cannot_stand_in_for_tokens() -> None:
    manager = new_manager()
    tokens = [0x746C6173, 5, 6, 7]  # "salt" in memory
    serve(manager, [*tokens, 1])
    assert hits(manager, [*tokens, 1], cache_salt="") == 0


def test_the_hashes_of_two_managers_differ_unless_they_share_a_key() -> None:
    sequences = [new_sequence(list(range(4))) for _ in range(4)]
    managers = [BlockManager(4, BLOCK_SIZE), BlockManager(4, BLOCK_SIZE), new_manager(), new_manager()]
    for manager, sequence in zip(managers, sequences, strict=True):
        assert manager.admit(sequence)
        compute(manager, sequence)
    first, second, third, fourth = (sequence.block_hashes[0] for sequence in sequences)
    assert len({first, second, third}) == 3
    assert third == fourth


def test_requests_that_need_every_position_find_nothing_but_leave_their_blocks_to_others() -> None:
    manager = new_manager()
    prompt = list(range(9))
    serve(manager, prompt)
    needing = new_sequence(prompt, prompt_logprobs=1)
    assert manager.admit(needing)
    assert needing.num_computed_tokens == 0
    assert manager.adopt_cached(needing) == []
    compute(manager, needing)
    manager.check([needing])
    manager.release(needing)
    assert hits(manager, prompt) == 8


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = new_manager(enable_prefix_caching=False)
    serve(manager, list(range(12)))
    assert manager.num_cached == 0
    assert hits(manager, list(range(12))) == 0


def test_a_cached_prefix_takes_no_new_blocks() -> None:
    manager = new_manager(4)
    serve(manager, list(range(13)))
    first, second = new_sequence([*range(12), 50]), new_sequence([*range(8), 60])
    assert manager.admit(first)
    assert not manager.admit(second)  # its hits are in use, but it needs one block of its own
    manager.release(first)
    assert manager.admit(second)
    manager.check([second])


# -- eviction


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    manager = new_manager(4)
    serve(manager, [1] * 8)
    serve(manager, [2] * 8)
    assert hits(manager, [1] * 5) == 4  # used again, so [2] * 8 is the older now
    blockers = [new_sequence([50]), new_sequence([51])]
    assert all(manager.admit(blocker) for blocker in blockers)
    # What continues the first block of [1] * 8 was not used again.
    survivors = [sum(manager._by_hash.get(h) is not None for h in chain(manager, token_ids)) for token_ids in ([1] * 8, [2] * 8)]
    assert survivors == [1, 1]
    blockers.append(new_sequence([52]))
    assert manager.admit(blockers[-1])
    survivors = [sum(manager._by_hash.get(h) is not None for h in chain(manager, token_ids)) for token_ids in ([1] * 8, [2] * 8)]
    assert survivors == [1, 0]


def chain(manager: BlockManager, token_ids: list[int]) -> list[bytes]:
    """The hashes of the full blocks of these tokens."""
    return [manager._hash(new_sequence(token_ids), index) for index in range(len(token_ids) // BLOCK_SIZE)]


def test_no_cached_block_outlives_the_one_it_continues() -> None:
    manager = new_manager(6)
    serve(manager, list(range(24)))
    taken: list[Sequence] = []
    for remaining in (20, 16, 12, 8, 4, 0):
        blocker = new_sequence([1000 + remaining])
        assert manager.admit(blocker)
        taken.append(blocker)
        manager.check(taken)
        assert manager.num_cached * BLOCK_SIZE == remaining
    assert manager.num_evictions == 6


def test_a_shared_beginning_stays_while_any_of_its_continuations_is_held() -> None:
    manager = new_manager(8)
    first = new_sequence([*range(8), 1])
    assert manager.admit(first)
    compute(manager, first)
    second = new_sequence([*range(8), 2])
    assert manager.admit(second)
    assert second.block_table[:2] == first.block_table[:2]
    manager.release(first)
    manager.check([second])
    assert manager.num_referenced == 3


# -- sharing among running sequences


def test_a_prompt_shares_the_blocks_that_another_one_fills_in_the_same_step() -> None:
    manager = new_manager()
    first, second = new_sequence(list(range(13))), new_sequence(list(range(13)))
    assert manager.admit(first)
    compute(manager, first, step_done=False)
    assert manager.admit(second)
    assert second.num_computed_tokens == 12
    assert second.block_table[:3] == first.block_table[:3]
    manager.check([first, second])


def test_prompts_that_run_side_by_side_share_a_block_as_soon_as_one_has_scheduled_it() -> None:
    manager = new_manager()
    first, second = new_sequence(list(range(13))), new_sequence(list(range(13)))
    assert manager.admit(first)
    assert manager.admit(second)  # both came before anything was computed, so each has blocks of its own
    assert not set(first.block_table) & set(second.block_table)
    compute(manager, first, 9, step_done=False)
    assert manager.adopt_cached(second) == [0, 1]
    assert second.num_computed_tokens == 8
    assert second.block_table[:2] == first.block_table[:2]
    manager.check([first, second])
    compute(manager, first, 4, step_done=False)
    assert manager.adopt_cached(second) == [2]
    assert second.num_computed_tokens == 12  # its last token is left to it
    manager.check([first, second])


def test_a_block_computed_twice_at_once_is_replaced_when_its_step_is_done_not_before() -> None:
    manager = new_manager()
    first, second = new_sequence(list(range(9))), new_sequence(list(range(9)))
    assert manager.admit(first)
    assert manager.admit(second)
    compute(manager, first, step_done=False)
    assert compute(manager, second, step_done=False) == []
    own = list(second.block_table)
    manager.check([first, second])
    assert manager.register(second, step_done=True) == [0, 1]
    assert second.block_table == [*first.block_table[:2], own[2]]
    assert manager.num_referenced == 4
    manager.check([first, second])


# -- forks


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_fork_shares_all_blocks_of_the_prompt_and_copies_the_last_one_to_write_to_it(enable_prefix_caching: bool) -> None:
    manager = new_manager(enable_prefix_caching=enable_prefix_caching)
    first = new_sequence(list(range(11)))
    assert manager.admit(first)
    compute(manager, first)
    forks = [new_sequence(list(range(11))) for _ in range(3)]
    for fork in forks:
        assert manager.admit(fork, sibling=first)
        assert fork.num_computed_tokens == 10
        assert fork.block_table[:2] == first.block_table[:2]
    assert manager.take_copies() == [(first.block_table[2], fork.block_table[2]) for fork in forks]
    assert manager.num_referenced == 2 + 4
    for fork in forks:
        compute(manager, fork)
    manager.check([first, *forks])
    manager.release(first)
    manager.check(forks)
    assert manager.num_referenced == 2 + 3


def test_a_fork_whose_next_token_begins_a_block_copies_nothing() -> None:
    manager = new_manager()
    first = new_sequence(list(range(9)))
    assert manager.admit(first)
    compute(manager, first)
    fork = new_sequence(list(range(9)))
    assert manager.admit(fork, sibling=first)
    assert fork.num_computed_tokens == 8
    assert manager.take_copies() == []
    manager.check([first, fork])


def test_a_fork_that_cannot_have_its_copy_changes_nothing() -> None:
    manager = new_manager(3)
    first = new_sequence(list(range(11)))
    assert manager.admit(first)
    compute(manager, first)
    fork = new_sequence(list(range(11)))
    assert not manager.admit(fork, sibling=first)
    assert fork.block_table == []
    manager.check([first])


def test_a_copy_for_a_block_that_is_given_back_in_the_same_step_is_not_made() -> None:
    manager = new_manager()
    first = new_sequence(list(range(11)))
    assert manager.admit(first)
    compute(manager, first)
    forks = [new_sequence(list(range(11))) for _ in range(2)]
    assert all(manager.admit(fork, sibling=first) for fork in forks)
    manager.release(forks[0])
    assert manager.take_copies() == [(first.block_table[2], forks[1].block_table[2])]
    manager.check([first, forks[1]])


def test_a_longer_cached_prefix_goes_before_what_a_sibling_holds() -> None:
    manager = new_manager()
    serve(manager, list(range(13)))
    first, resumed = new_sequence(list(range(6))), new_sequence(list(range(6)))
    assert manager.admit(first)
    compute(manager, first)
    resumed.token_ids = list(range(13))  # it had generated seven tokens when it was preempted
    assert manager.admit(resumed, sibling=first)
    assert resumed.num_computed_tokens == 12
    assert manager.take_copies() == []


def test_blocks_settle_when_their_step_is_done_if_others_hold_the_same_content() -> None:
    manager = new_manager()
    first, second = new_sequence(list(range(9))), new_sequence(list(range(9)))
    for sequence in (first, second):
        assert manager.admit(sequence)
    for sequence in (first, second):
        compute(manager, sequence, step_done=False)
    assert manager.has_settled(first, 8)
    assert not manager.has_settled(second, 8)
    manager.register(second, step_done=True)
    assert manager.has_settled(second, 8)


# -- reset


def test_a_reset_forgets_everything_and_running_sequences_go_on() -> None:
    manager = new_manager()
    serve(manager, [9] * 8)
    running = new_sequence(list(range(9)))
    assert manager.admit(running)
    compute(manager, running)
    manager.reset_prefix_cache()
    manager.check([running])
    assert manager.num_cached == 0
    assert hits(manager, [9] * 8) == 0
    assert hits(manager, list(range(9))) == 0
    for token_id in range(50, 58):
        running.token_ids.append(token_id)
        assert manager.grow(running) is not None
        compute(manager, running)
        manager.check([running])
    manager.release(running)
    assert manager.num_cached == 0  # what continued forgotten blocks could never have been found


def test_a_prompt_that_was_half_computed_at_a_reset_does_not_continue_another_ones_blocks() -> None:
    manager = new_manager()
    half = new_sequence(list(range(13)))
    assert manager.admit(half)
    compute(manager, half, 4)
    manager.reset_prefix_cache()
    other = new_sequence(list(range(13)))
    assert manager.admit(other)
    compute(manager, other)
    assert manager.adopt_cached(half) == []
    own = list(half.block_table)
    assert compute(manager, half, 9) == []
    assert half.block_table == own
    manager.release(other)
    manager.check([half])


# -- check finds what is wrong


def test_check_names_a_leaked_block_and_a_wrong_count() -> None:
    manager = new_manager()
    sequence = new_sequence(list(range(9)))
    assert manager.admit(sequence)
    with pytest.raises(AssertionError, match="block 0: 1 != 0"):
        manager.check([])
    manager._blocks[sequence.block_table[0]].ref_count += 1
    with pytest.raises(AssertionError, match="block 0: 2 != 1"):
        manager.check([sequence])


# -- cost


class CountingList(FreeList):
    """Counts its basic operations."""

    operations = 0

    def _insert(self, block: Block, after: Block) -> None:
        CountingList.operations += 1
        super()._insert(block, after)

    def remove(self, block: Block) -> None:
        CountingList.operations += 1
        super().remove(block)

    def in_order(self) -> list[Block]:
        raise AssertionError("the whole list is walked")


def operations_in_a_pool_of(num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("engine.block_manager.FreeList", CountingList)
    manager = new_manager(num_blocks)
    CountingList.operations = 0
    for i in range(20):
        sequence = new_sequence([i // 2] * 8 + [i])
        assert manager.admit(sequence)
        compute(manager, sequence)
        sequence.token_ids.extend([1, 2, 3, 4])
        assert manager.grow(sequence) is not None
        manager.release(sequence)
    return CountingList.operations


def test_allocating_and_giving_back_cost_the_same_in_a_pool_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operations_in_a_pool_of(64, monkeypatch) == operations_in_a_pool_of(16_384, monkeypatch) > 0


def test_blocks_leave_a_free_list_in_the_order_of_reuse_and_from_its_middle() -> None:
    manager = new_manager(5)
    free, blocks = manager._free, manager._blocks
    free.remove(blocks[2])
    free.push_back(blocks[2])
    free.remove(blocks[4])
    free.push_front(blocks[4])
    assert [block.block_id for block in free.in_order()] == [4, 0, 1, 3, 2]
    assert [free.pop_front().block_id for _ in range(5)] == [4, 0, 1, 3, 2]
    assert len(free) == 0

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.host_cache import HostCache


def new_cache(num_blocks: int, contents: list[bytes] | None = None) -> HostCache:
    """With these contents cached, the first of them the least recently used, their copies made."""
    cache = HostCache(num_blocks)
    for i, content in enumerate(contents or []):
        cache.keep(100 + i, content)
    cache.take_copies()
    return cache


def test_what_the_device_evicts_is_copied_out_once_and_found_under_its_hash() -> None:
    cache = HostCache(2)
    cache.keep(7, b"a")
    host_block = cache.find(b"a")
    assert host_block is not None
    assert cache.take_copies() == ([(7, host_block)], [])
    cache.keep(9, b"a")
    assert cache.take_copies() == ([], [])
    assert (cache.num_cached, cache.num_free, cache.num_held) == (1, 1, 0)


def test_the_least_recently_used_content_goes_first() -> None:
    cache = new_cache(2, [b"a", b"b"])
    cache.keep(1, b"a")  # seen again
    cache.keep(2, b"c")
    assert [cache.find(content) is None for content in (b"a", b"b", b"c")] == [False, True, False]
    assert cache.num_evictions == 1


def test_a_table_is_held_until_it_is_given_back_and_content_without_a_hash_is_worthless_then() -> None:
    cache = HostCache(3)
    table = cache.swap_out([(4, b"a"), (5, None)])
    assert table is not None
    cache.check([table])
    assert (cache.num_held, cache.num_free) == (2, 1)
    assert sorted(cache.take_copies()[0]) == sorted(zip([4, 5], table, strict=True))
    cache.let_go(table)
    cache.check([])
    assert (cache.num_held, cache.num_cached, cache.num_free) == (0, 1, 2)
    assert cache.find(b"a") == table[0]


def test_content_that_is_there_already_is_held_and_not_copied() -> None:
    cache = new_cache(3, [b"a"])
    table = cache.swap_out([(4, b"a"), (5, b"b")])
    assert table is not None
    assert cache.take_copies()[0] == [(5, table[1])]
    other = cache.swap_out([(4, b"a"), (6, None)])
    assert other is not None
    assert other[0] == table[0]
    cache.check([table, other])
    cache.let_go(table)
    cache.check([other])


def test_a_table_that_does_not_fit_changes_nothing() -> None:
    cache = new_cache(2, [b"a"])
    assert cache.swap_out([(1, b"a"), (2, None), (3, None)]) is None
    cache.check([])
    assert cache.take_copies() == ([], [])
    assert (cache.num_cached, cache.num_free) == (1, 1)


def test_swapped_tables_push_cached_content_out_but_never_the_other_way_round() -> None:
    cache = new_cache(2, [b"a", b"b"])
    table = cache.swap_out([(1, None), (2, None)])
    assert table is not None
    assert cache.find(b"a") is cache.find(b"b") is None
    cache.keep(3, b"c")
    assert cache.find(b"c") is None
    cache.check([table])


def test_a_block_that_the_step_reads_is_not_filled_anew_by_the_same_step() -> None:
    cache = new_cache(1, [b"a"])
    host_block = cache.find(b"a")
    assert host_block is not None
    cache.hold(host_block)
    cache.fetch(host_block, 5)
    cache.keep(6, b"b")
    assert cache.take_copies() == ([], [(host_block, 5)])
    cache.keep(6, b"b")
    assert cache.take_copies() == ([(6, host_block)], [])


def test_a_copy_to_a_block_that_is_given_back_before_it_is_made_is_not_made() -> None:
    cache = HostCache(1)
    table = cache.swap_out([(3, None)])
    assert table is not None
    cache.let_go(table)
    assert cache.take_copies() == ([], [])
    table = cache.swap_out([(3, None)])
    assert table is not None
    cache.let_go(table)
    assert cache.swap_out([(8, None)]) == table
    assert cache.take_copies() == ([(8, table[0])], [])


def test_a_reset_forgets_all_content_but_leaves_swapped_tables_theirs() -> None:
    cache = new_cache(3, [b"a"])
    table = cache.swap_out([(1, b"b")])
    assert table is not None
    cache.reset()
    cache.check([table])
    assert cache.find(b"a") is cache.find(b"b") is None
    assert (cache.num_held, cache.num_free) == (1, 2)
    assert cache.take_copies() == ([(1, table[0])], [])
    cache.let_go(table)
    assert cache.num_free == 3


def test_giving_a_block_back_twice_is_noticed() -> None:
    cache = HostCache(1)
    table = cache.swap_out([(1, None)])
    assert table is not None
    cache.let_go(table)
    with pytest.raises(AssertionError, match="given back twice"):
        cache.let_go(table)


@given(st.data())
def test_every_block_is_free_or_held_or_cached_whatever_happens(data: st.DataObject) -> None:
    cache = HostCache(data.draw(st.integers(0, 5)))
    hashes = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
    tables: list[list[int]] = []
    for _ in range(data.draw(st.integers(0, 30))):
        event = data.draw(st.sampled_from(["keep", "swap out", "swap in", "drop", "hit", "step", "reset"]))
        if event == "keep":
            cache.keep(data.draw(st.integers(0, 9)), data.draw(hashes))
        elif event == "swap out":
            names = data.draw(st.lists(hashes, max_size=4, unique=True))
            table = cache.swap_out([(i, name if name < b"e" else None) for i, name in enumerate(names)])
            tables += [table] if table else []
        elif event == "swap in" and tables:
            for host_block in tables.pop():
                cache.fetch(host_block, 0)
        elif event == "drop" and tables:
            cache.let_go(tables.pop())
        elif event == "hit" and (host_block := cache.find(data.draw(hashes))) is not None:
            cache.hold(host_block)
            cache.fetch(host_block, 1)
        elif event == "step":
            leaving, arriving = cache.take_copies()
            assert len({host_block for _, host_block in leaving}) == len(leaving)
            assert all(0 <= host_block < cache.num_blocks for host_block, _ in arriving)
        elif event == "reset":
            cache.reset()
        cache.check(tables)
        assert cache.num_free + cache.num_held + cache.num_cached == cache.num_blocks

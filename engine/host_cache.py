"""HostCache: which block of host memory holds what. The second tier behind the BlockManager; it deals in ids only and holds no tensors.

A host block is in exactly one of three states, and every operation on one is O(1):

    free      its content is worthless
    held      by swapped-out block tables, or by a copy to the device that the next step makes; it stays until they let go
    cached    nobody holds it; its content is known by its hash and kept for a hit, the least recently used goes first

Content is immutable once it has a hash, so it is copied out once: a block that comes back to the device stays known here, and costs
nothing when the device evicts it again.

Copies are collected for the step that is being built (`take_copies`). A step copies out first, then in, then computes. Whoever reads a
host block in a step therefore holds it until the step is complete: another block's content must not be copied there before it is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

BlockPairs = list[tuple[int, int]]  # (source, destination)


class HostCache:
    """Bookkeeping of `num_blocks` host blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0  # cached contents given up for new ones
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._leaving: dict[int, int] = {}  # host block -> device block whose content the next step copies there
        self._arriving: BlockPairs = []  # (host block, device block); each has a reference of its own

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    # -- device to host ------------------------------------------------------------------------------------------------------------

    def swap_out(self, contents: list[tuple[int, bytes | None]]) -> list[int] | None:
        """Hold the contents of a block table: (device block, hash if it has one) each. None, and nothing changed: there is no room.

        Content that is here already is not copied again.
        """
        known = [None if content_hash is None else self._by_hash.get(content_hash) for _, content_hash in contents]
        num_new = known.count(None)
        num_known_cached = sum(1 for host_block in known if host_block in self._cached)
        if num_new > self.num_free + self.num_cached - num_known_cached:
            return None
        for host_block in known:  # all of them before any is taken, which may evict
            if host_block is not None:
                self.hold(host_block)
        return [
            self._take(device_block, content_hash) if host_block is None else host_block
            for host_block, (device_block, content_hash) in zip(known, contents, strict=True)
        ]

    def keep(self, device_block: int, content_hash: bytes) -> None:
        """Cache what the device evicts, if any block can be had for it."""
        host_block = self._by_hash.get(content_hash)
        if host_block is None:
            if not self._free and not self._cached:
                return
            self.let_go([self._take(device_block, content_hash)])
        elif host_block in self._cached:
            self._cached.move_to_end(host_block)

    # -- host to device ------------------------------------------------------------------------------------------------------------

    def find(self, content_hash: bytes) -> int | None:
        """The host block of this content."""
        return self._by_hash.get(content_hash)

    def fetch(self, host_block: int, device_block: int) -> None:
        """Copy to the device in the next step. The caller's hold passes to the copy."""
        assert self._ref_counts[host_block] > 0
        self._arriving.append((host_block, device_block))

    def take_copies(self) -> tuple[BlockPairs, BlockPairs]:
        """The copies of the step that is complete now: ((device, host) ... out, which go first, and (host, device) ... in)."""
        leaving = [(device_block, host_block) for host_block, device_block in self._leaving.items()]
        arriving = self._arriving
        self._leaving, self._arriving = {}, []
        # Last block of a table first: what continues another goes before it.
        self.let_go(host_block for host_block, _ in reversed(arriving))
        return leaving, arriving

    # -- references ----------------------------------------------------------------------------------------------------------------

    def hold(self, host_block: int) -> None:
        if self._ref_counts[host_block] == 0:
            del self._cached[host_block]
        self._ref_counts[host_block] += 1

    def let_go(self, host_blocks: Iterable[int]) -> None:
        """Give up one hold of each. Content with a hash stays cached until its block is needed."""
        for host_block in host_blocks:
            assert self._ref_counts[host_block] > 0, f"host block {host_block} was given back twice"
            self._ref_counts[host_block] -= 1
            if self._ref_counts[host_block] == 0:
                if self._hashes[host_block] is None:
                    self._set_free(host_block)
                else:
                    self._cached[host_block] = None

    def reset(self) -> None:
        """Forget all cached content. Swapped-out tables keep theirs."""
        self._by_hash.clear()
        self._hashes = [None] * self.num_blocks
        for host_block in self._cached:
            self._set_free(host_block)
        self._cached.clear()

    def check(self, tables: Iterable[list[int]]) -> None:
        """Verify every invariant, given the swapped-out tables. Raises AssertionError with what is wrong."""
        counts = [0] * self.num_blocks
        for table in tables:
            for host_block in table:
                counts[host_block] += 1
        for host_block, _ in self._arriving:
            counts[host_block] += 1
        assert counts == self._ref_counts, "a host block is held wrongly"
        held = {host_block for host_block in range(self.num_blocks) if counts[host_block]}
        places = [*self._free, *self._cached, *held]
        assert sorted(places) == list(range(self.num_blocks)), "a host block is lost or in two states"
        assert self.num_held == len(held)
        assert all(self._hashes[host_block] is not None for host_block in self._cached), "a cached host block has no content"
        assert all(self._hashes[host_block] is None for host_block in self._free), "a free host block is known by its content"
        known = {content_hash: host_block for host_block, content_hash in enumerate(self._hashes) if content_hash is not None}
        assert known == self._by_hash, "a hash leads to a host block with another"
        assert not self._leaving.keys() & set(self._free), "a copy goes to a free host block"

    # -- the pool ------------------------------------------------------------------------------------------------------------------

    def _take(self, device_block: int, content_hash: bytes | None) -> int:
        """A host block for the content, held once."""
        if self._free:
            host_block = self._free.pop()
        else:
            host_block, _ = self._cached.popitem(last=False)
            evicted = self._hashes[host_block]
            assert evicted is not None
            del self._by_hash[evicted]
            self.num_evictions += 1
        self._ref_counts[host_block] = 1
        self._hashes[host_block] = content_hash
        if content_hash is not None:
            self._by_hash[content_hash] = host_block
        self._leaving[host_block] = device_block  # in place of what it would have got in this same step, if that is worthless by now
        return host_block

    def _set_free(self, host_block: int) -> None:
        self._free.append(host_block)
        self._leaving.pop(host_block, None)

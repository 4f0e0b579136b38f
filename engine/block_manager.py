"""BlockManager: which KV block belongs to whom.

Paged memory after Kwon et al. (2023, sections 4.2 and 4.3): fixed-size blocks out of one pool, a block table per sequence, reference
counts, and a prefix cache keyed by the chained hash of a block's tokens. It deals in block ids only and holds no tensors. Behind it may
stand a second tier in host memory, the HostCache: what is evicted here goes there, and is found there.

A block is in exactly one of three states:

    free        no table holds it and its content is worthless      } both kinds stand in the one free list, whose
    cached      no table holds it, its content is kept for a hit    } order is the order of reuse
    referenced  in ref_count block tables
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Iterable

from engine.free_list import Block, FreeList
from engine.host_cache import BlockPairs, HostCache
from engine.sequence import Sequence


class BlockManager:
    """Gives blocks to sequences, takes them back, and finds blocks that already hold a prompt's beginning.

    `salt` keys the hashes (default: random), so that nobody outside can aim a collision.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        salt: bytes | None = None,
        host: HostCache | None = None,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.host = HostCache(0) if host is None else host
        self.num_evictions = 0
        self._salt = salt or secrets.token_bytes(16)
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeList()
        self._by_hash: dict[bytes, Block] = {}
        self._num_cached = 0
        self._copies: BlockPairs = []  # since the last step was scheduled
        for block in self._blocks:
            self._free.push_back(block)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_available(self) -> int:
        """Blocks that an allocation may take: free and cached."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that no table holds but whose content is kept."""
        return self._num_cached

    @property
    def num_free(self) -> int:
        """Blocks that no table holds and whose content is worthless."""
        return self.num_available - self._num_cached

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def block_states(self) -> list[int]:
        """For each block: 0 when tables hold it, -1 when it is free, -2 when it is free but kept for its content."""
        return [0 if block.ref_count else -1 if block.content_hash is None else -2 for block in self._blocks]

    # -- a sequence's blocks -------------------------------------------------------------------------------------------------------

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, num_spare: int = 0, sibling: Sequence | None = None) -> bool:
        """Give a waiting sequence blocks for all its tokens, the longest beginning shared that is there, or leave everything as it was.

        That is the longest cached prefix, or what a `sibling` holds: its `num_shareable_tokens`, which must be in the sibling's blocks,
        the last and partly filled one included. That block is copied at once, as the sequence will write to it. What only host memory
        holds, be it a cached prefix or all that was swapped out, is copied to fresh blocks. Sets `num_computed_tokens` to the tokens whose
        KV is there once the step that is being built has made the copies. False: fewer than `num_spare` blocks would be left.
        """
        assert not sequence.block_table
        assert sibling is None or not sequence.is_swapped
        shared = self._find_prefix(sequence)
        num_shared_tokens, num_registered = len(shared) * self.block_size, len(shared)
        on_host = sequence.host_table[len(shared) :] if sequence.is_swapped else self._find_on_host(sequence, len(shared))
        if sibling is not None and sequence.num_shareable_tokens > (len(shared) + len(on_host)) * self.block_size:
            on_host = []
            num_shared_tokens = sequence.num_shareable_tokens
            shared = [self._blocks[i] for i in sibling.block_table[: self.num_blocks_for(num_shared_tokens)]]
            num_registered = min(sibling.num_registered_blocks, num_shared_tokens // self.block_size)
        num_needed = self.num_blocks_for(sequence.num_tokens) - num_shared_tokens // self.block_size  # a copied one included
        num_unreferenced = sum(1 for block in shared if block.ref_count == 0)
        if self.num_available - num_unreferenced - num_needed < num_spare:
            return False
        for block in shared:
            self._reference(block)
        sequence.block_table = [block.block_id for block in shared]
        sequence.num_registered_blocks = num_registered
        sequence.num_computed_tokens = max(num_shared_tokens, sequence.num_computed_tokens if sequence.is_swapped else 0)
        if num_shared_tokens % self.block_size:
            self._copy_on_write(sequence, len(shared) - 1)
        self._bring_back(sequence, on_host)
        while len(sequence.block_table) < self.num_blocks_for(sequence.num_tokens):
            sequence.block_table.append(self._take().block_id)
        return True

    def has_settled(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the sequence's full blocks up to `num_tokens` are for good, none of them about to be replaced by one of the same content.

        Before that, a sequence that shares them would hold the end of a chain of cached blocks without its beginning.
        """
        settled = sequence.num_registered_blocks >= num_tokens // self.block_size
        return settled or not self.enable_prefix_caching or self._chain_forgotten(sequence)

    def take_copies(self) -> BlockPairs:
        """The copies of blocks, (source, destination) in order, that the step being scheduled must make before it computes."""
        copies, self._copies = self._copies, []
        return copies

    def grow(self, sequence: Sequence) -> list[int] | None:
        """Make room for the sequence's newest token: a new block, or its own copy of one that other beams hold too.

        Returns the changed indices of the block table; None: a block was needed and none is to be had.
        """
        index = (sequence.num_tokens - 1) // self.block_size
        is_new = index == len(sequence.block_table)
        if not is_new and self._blocks[sequence.block_table[index]].ref_count == 1:
            return []
        if not self.num_available:
            return None
        if is_new:
            sequence.block_table.append(self._take().block_id)
        else:
            self._copy_on_write(sequence, index)
        return [index]

    def reassign(self, pairs: list[tuple[Sequence, Sequence]]) -> None:
        """For each (sequence, source) at once: the sequence gives its blocks back, and shares all those that the source had."""
        tables = [list(source.block_table) for _, source in pairs]
        counts = [(source.num_computed_tokens, source.num_registered_blocks) for _, source in pairs]
        hashes = [list(source.block_hashes) for _, source in pairs]
        for table in tables:
            for block_id in table:
                self._reference(self._blocks[block_id])
        for (sequence, _), table, (num_computed, num_registered), known in zip(pairs, tables, counts, hashes, strict=True):
            self.release(sequence)
            sequence.block_table, sequence.block_hashes = table, known
            sequence.num_computed_tokens, sequence.num_registered_blocks = num_computed, num_registered

    def num_tokens_to_share(self, sequence: Sequence, sibling: Sequence | None) -> int:
        """The tokens of a waiting sequence that need not be computed: what `admit` would find."""
        num_hits = len(self._find_prefix(sequence))
        if sequence.is_swapped:
            return max(num_hits * self.block_size, sequence.num_computed_tokens)
        in_cache = (num_hits + len(self._find_on_host(sequence, num_hits))) * self.block_size
        return in_cache if sibling is None else max(in_cache, sequence.num_shareable_tokens)

    def adopt_cached(self, sequence: Sequence) -> list[int]:
        """Replace blocks that a prompt under way has yet to compute by ones that another has computed since.

        Advances `num_computed_tokens` past them; returns the changed indices of the block table.
        """
        changed: list[int] = []
        if self._chain_forgotten(sequence):
            return changed
        while (index := sequence.num_computed_tokens // self.block_size) < self._max_hits(sequence):
            if index != sequence.num_registered_blocks:
                break  # an earlier block of its own stands in for a cached one until its step is done
            block = self._by_hash.get(self._hash(sequence, index))
            if block is None or block.block_id == sequence.block_table[index]:
                break
            self._replace(sequence, index, block)
            sequence.num_registered_blocks = index + 1
            sequence.num_computed_tokens = (index + 1) * self.block_size
            changed.append(index)
        return changed

    def register(self, sequence: Sequence, step_done: bool) -> list[int]:
        """Enter the sequence's full computed blocks in the prefix cache.

        Called when a step that fills them is scheduled (attention of the same step may already read them, for every layer writes its
        keys before it attends), and again when the step is done and the sampled tokens are known. Where a block of the same content
        is there already, it replaces the sequence's own, but only once the step that writes to that is done. Returns the changed
        indices of the block table. This keeps every chain of cached blocks inside each table that holds its end, on which the order of
        eviction rests.
        """
        changed: list[int] = []
        num_full = min(sequence.num_computed_tokens, len(sequence.token_ids)) // self.block_size
        if num_full <= sequence.num_registered_blocks or not self.enable_prefix_caching or self._chain_forgotten(sequence):
            return changed
        for index in range(sequence.num_registered_blocks, num_full):
            content_hash = self._hash(sequence, index)
            known = self._by_hash.get(content_hash)
            block = self._blocks[sequence.block_table[index]]
            if known is None:
                self._enter(sequence, index)
            elif not step_done:
                break
            elif known is not block:
                self._replace(sequence, index, known)
                changed.append(index)
            sequence.num_registered_blocks = index + 1
        return changed

    def release(self, sequence: Sequence) -> None:
        """Give back all blocks of the sequence; cached content stays until its block is needed."""
        # Last block first: it is the first to be evicted, so no cached block ever outlives the one it continues.
        for block_id in reversed(sequence.block_table):
            self._dereference(self._blocks[block_id])
        sequence.block_table = []
        sequence.num_registered_blocks = 0
        if not sequence.is_swapped:
            sequence.num_computed_tokens = 0

    def swap_out(self, sequence: Sequence) -> bool:
        """Have the next step copy the sequence's computed blocks to host memory, where they are held for it. Its own are to be released.

        False, and nothing changed: host memory has no room.
        """
        table = [self._blocks[block_id] for block_id in sequence.block_table[: self.num_blocks_for(sequence.num_computed_tokens)]]
        sequence.host_table = self.host.swap_out([(block.block_id, block.content_hash) for block in table]) or []
        return sequence.is_swapped

    def drop_swapped(self, sequence: Sequence) -> None:
        """Give back the host blocks of a sequence that will not come back for them."""
        self.host.let_go(reversed(sequence.host_table))
        sequence.host_table = []

    def take_swaps(self) -> tuple[BlockPairs, BlockPairs]:
        """The copies between device and host of the step that is complete now: `swap_outs` and `swap_ins` of its StepInput."""
        return self.host.take_copies()

    def reset_prefix_cache(self) -> None:
        """Forget all cached content. Running sequences keep their blocks, but enter no further ones that continue forgotten ones."""
        for block in self._by_hash.values():
            block.content_hash = block.parent_hash = None
        self._by_hash.clear()
        self._num_cached = 0
        self.host.reset()

    # -- invariants ----------------------------------------------------------------------------------------------------------------

    def check(self, sequences: list[Sequence], swapped: Iterable[Sequence] = ()) -> None:
        """Verify every invariant in full, given all sequences that hold blocks, and all that are swapped out.

        Raises AssertionError with what is wrong.
        """
        assert not self._copies, "blocks were copied, and no step was told"
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block_id in sequence.block_table:
                counts[block_id] += 1
        in_list = self._free.in_order()
        assert len(in_list) == len(self._free), "the free list's length is wrong"
        listed = {block.block_id for block in in_list}
        assert len(listed) == len(in_list), "a block stands twice in the free list"
        for block in self._blocks:
            assert block.ref_count == counts[block.block_id], f"block {block.block_id}: {block.ref_count} != {counts[block.block_id]}"
            assert (block.ref_count == 0) == (block.block_id in listed), f"block {block.block_id} is in the wrong state"
            if block.content_hash is not None:
                assert self._by_hash.get(block.content_hash) is block, f"block {block.block_id} is not under its hash"
        assert all(block.content_hash == key for key, block in self._by_hash.items()), "a hash leads to a block with another"
        cached = sum(1 for block in in_list if block.content_hash is not None)
        assert cached == self._num_cached, f"{cached} cached blocks, but {self._num_cached} counted"
        self._check_eviction_order(in_list)
        for sequence in sequences:
            self._check_sequence(sequence)
        for sequence in swapped:
            num_blocks = self.num_blocks_for(sequence.num_computed_tokens)
            assert len(sequence.host_table) == num_blocks, f"{sequence.request_id} has not all that it computed in host memory"
        self.host.check(sequence.host_table for sequence in swapped)

    def _check_eviction_order(self, in_list: list[Block]) -> None:
        place = {block.content_hash: i for i, block in enumerate(in_list) if block.content_hash is not None}
        for content_hash, block in self._by_hash.items():
            if block.parent_hash is None:
                continue
            parent = self._by_hash.get(block.parent_hash)
            assert parent is not None, f"block {block.block_id} outlived the block it continues"
            if parent.ref_count == 0:
                assert block.ref_count == 0, f"block {block.block_id} is held, the block it continues is not"
                assert place[content_hash] < place[block.parent_hash], f"block {parent.block_id} would go before its continuation"

    def _check_sequence(self, sequence: Sequence) -> None:
        table = sequence.block_table
        assert len(set(table)) == len(table), f"{sequence.request_id} holds a block twice"
        assert sequence.num_computed_tokens <= len(table) * self.block_size, f"{sequence.request_id} computed more than it holds"
        for index, block_id in enumerate(table):
            block = self._blocks[block_id]
            # The block of the next token may be shared among beams: the one that writes to it copies it first.
            written_later = index * self.block_size > sequence.num_computed_tokens
            written_next = not written_later and (index + 1) * self.block_size > sequence.num_computed_tokens
            if index < sequence.num_registered_blocks and block.content_hash is not None:
                assert block.content_hash == self._hash(sequence, index), f"{sequence.request_id}: block {index} has other content"
            if written_later or (written_next and sequence.search is None):
                assert block.ref_count == 1, f"{sequence.request_id} would write to block {block_id}, which is shared"

    # -- the pool ------------------------------------------------------------------------------------------------------------------

    def _take(self) -> Block:
        block = self._free.pop_front()
        if block.content_hash is not None:
            self.host.keep(block.block_id, block.content_hash)
            del self._by_hash[block.content_hash]
            block.content_hash = block.parent_hash = None
            self._num_cached -= 1
            self.num_evictions += 1
        block.ref_count = 1
        return block

    def _reference(self, block: Block) -> None:
        if block.ref_count == 0:
            self._free.remove(block)
            self._num_cached -= block.content_hash is not None
        block.ref_count += 1

    def _dereference(self, block: Block) -> None:
        assert block.ref_count > 0, f"block {block.block_id} was given back twice"
        block.ref_count -= 1
        if block.ref_count == 0:
            if self._copies:  # what it was to get in this step is worthless now, and would overwrite what a swap brings
                self._copies = [copy for copy in self._copies if copy[1] != block.block_id]
            if block.content_hash is None:
                self._free.push_front(block)
            else:
                self._free.push_back(block)
                self._num_cached += 1

    def _copy_on_write(self, sequence: Sequence, index: int) -> None:
        """Give the sequence a block of its own in place of one that others hold too."""
        shared, own = self._blocks[sequence.block_table[index]], self._take()
        self._copies.append((shared.block_id, own.block_id))
        self._dereference(shared)
        sequence.block_table[index] = own.block_id

    def _bring_back(self, sequence: Sequence, host_blocks: list[int]) -> None:
        """Continue the table by fresh blocks, to which the next step copies these host blocks."""
        sequence.num_host_hits = 0
        if sequence.is_swapped:
            num_on_device = len(sequence.host_table) - len(host_blocks)
            self.host.let_go(reversed(sequence.host_table[:num_on_device]))
        else:
            sequence.num_host_hits = len(host_blocks) * self.block_size
            for host_block in host_blocks:  # all of them before a block is taken, as its content may go to host memory
                self.host.hold(host_block)
        for host_block in host_blocks:
            block = self._take()
            sequence.block_table.append(block.block_id)
            self.host.fetch(host_block, block.block_id)
            if not sequence.is_swapped:
                self._enter(sequence, sequence.num_registered_blocks)
                sequence.num_registered_blocks += 1
                sequence.num_computed_tokens += self.block_size
        sequence.host_table = []

    def _enter(self, sequence: Sequence, index: int) -> None:
        """Make the prefix cache know the sequence's block `index`."""
        block, content_hash = self._blocks[sequence.block_table[index]], self._hash(sequence, index)
        block.content_hash = content_hash
        block.parent_hash = self._hash(sequence, index - 1) if index else None
        self._by_hash[content_hash] = block

    def _replace(self, sequence: Sequence, index: int, block: Block) -> None:
        own = self._blocks[sequence.block_table[index]]
        self._reference(block)
        self._dereference(own)
        sequence.block_table[index] = block.block_id

    # -- the prefix cache ----------------------------------------------------------------------------------------------------------

    def _max_hits(self, sequence: Sequence) -> int:
        """Blocks that may come from the cache: the last token is always computed, since its logits are needed."""
        if not self.enable_prefix_caching or sequence.needs_every_prompt_token:
            return 0
        return (len(sequence.token_ids) - 1) // self.block_size

    def _chain_forgotten(self, sequence: Sequence) -> bool:
        """A reset removed the sequence's blocks from the cache: one that continues them could never be found."""
        last = sequence.num_registered_blocks - 1
        return last >= 0 and self._blocks[sequence.block_table[last]].content_hash is None

    def _find_prefix(self, sequence: Sequence) -> list[Block]:
        hits: list[Block] = []
        for index in range(self._max_hits(sequence)):
            block = self._by_hash.get(self._hash(sequence, index))
            if block is None:
                break
            hits.append(block)
        return hits

    def _find_on_host(self, sequence: Sequence, first_index: int) -> list[int]:
        """Host blocks that continue the prefix found here. (No block here continues one there: none outlives the one it continues.)"""
        hits: list[int] = []
        for index in range(first_index, self._max_hits(sequence) if self.host.num_blocks else 0):
            host_block = self.host.find(self._hash(sequence, index))
            if host_block is None:
                break
            hits.append(host_block)
        return hits

    def _hash(self, sequence: Sequence, index: int) -> bytes:
        """The identity of the sequence's block `index`: all tokens up to its end, chained block by block, and the cache salt."""
        hashes = sequence.block_hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            tokens = array("I", sequence.token_ids[start : start + self.block_size])
            assert len(tokens) == self.block_size, "only full blocks have a hash"
            digest = hashlib.blake2b(hashes[-1] if hashes else b"", digest_size=16, key=self._salt)
            if not hashes and sequence.request.cache_salt is not None:
                digest.update(b"salt:" + sequence.request.cache_salt.encode("utf-8", "surrogatepass"))
            digest.update(tokens.tobytes())
            hashes.append(digest.digest())
        return hashes[index]

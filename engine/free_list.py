"""FreeList: the unreferenced KV blocks, in the order in which they are reused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    block_id: int
    ref_count: int = 0  # block tables that hold it
    content_hash: bytes | None = None  # set while the prefix cache knows the block
    parent_hash: bytes | None = None  # the content hash of the block before it in its chain
    # Neighbours in the free list; None at its ends and while the block is referenced.
    previous: Block | None = None
    next: Block | None = None


class FreeList:
    """A doubly linked list of unreferenced blocks in the order of reuse; every operation is O(1).

    Blocks without content go to the front. Cached ones go to the back, last block of a sequence first, so that the front is always the
    least recently used block of which no cached block is a continuation.
    """

    def __init__(self) -> None:
        self._head = Block(-1)
        self._tail = Block(-2)
        self._head.next, self._tail.previous = self._tail, self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push_front(self, block: Block) -> None:
        self._insert(block, self._head)

    def push_back(self, block: Block) -> None:
        assert self._tail.previous is not None
        self._insert(block, self._tail.previous)

    def pop_front(self) -> Block:
        block = self._head.next
        assert block is not None
        assert block is not self._tail, "no free block"
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        assert block.previous is not None
        assert block.next is not None
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = None
        self._length -= 1

    def in_order(self) -> list[Block]:
        blocks, block = [], self._head.next
        while block is not None and block is not self._tail:
            blocks.append(block)
            block = block.next
        return blocks

    def _insert(self, block: Block, after: Block) -> None:
        assert after.next is not None
        block.previous, block.next = after, after.next
        after.next.previous = block
        after.next = block
        self._length += 1

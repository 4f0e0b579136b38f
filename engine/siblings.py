"""Siblings: the sequences of one request, which begin with the same prompt and share the blocks that hold it.

Parallel sampling after Kwon et al. (2023, section 4.4): one of a request's sequences computes the prompt, the others are held until it
has, and then fork from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.block_manager import BlockManager
from engine.sequence import Sequence, SequenceStatus


class Siblings:
    """Knows which unfinished sequences belong together, which of them have yet to queue, and from which one may fork."""

    def __init__(self, block_manager: BlockManager) -> None:
        self._block_manager = block_manager
        self._groups: dict[str, list[Sequence]] = {}  # all unfinished, by group id
        self._held: dict[str, list[Sequence]] = {}  # of these, those that may not queue yet

    @property
    def held(self) -> list[Sequence]:
        return [sequence for held in self._held.values() for sequence in held]

    def is_held(self, sequence: Sequence) -> bool:
        return sequence in self._held.get(sequence.request.group_id or "", ())

    def add(self, sequence: Sequence) -> bool:
        """Returns whether it may queue. If not, another one computes the prompt first, and `release` or `remove` will return it."""
        group_id = sequence.request.group_id
        if group_id is None:
            return True
        group = self._groups.setdefault(group_id, [])
        is_led = self._leads(group)
        group.append(sequence)
        if is_led:
            self._held.setdefault(group_id, []).append(sequence)
        return not is_led

    def release(self, sequence: Sequence) -> list[Sequence]:
        """The sequence has computed its prompt. Returns those that were held for it: they queue now."""
        return self._held.pop(sequence.request.group_id or "", [])

    def remove(self, sequence: Sequence) -> list[Sequence]:
        """The sequence ended. Returns those that were held, where nobody computes their prompt any more: they queue now."""
        group_id = sequence.request.group_id
        if group_id is None:
            return []
        group = self._groups[group_id]
        group.remove(sequence)
        if self.is_held(sequence):
            self._held[group_id].remove(sequence)
        if not group:
            del self._groups[group_id]
        return [] if self._leads(group) else self.release(sequence)

    def source(self, sequence: Sequence, num_written: Mapping[str, int]) -> Sequence | None:
        """A running sibling whose blocks hold all that the sequence can share.

        `num_written`: by request id, the leading tokens that earlier steps than the one which is being scheduled have computed. What that
        one writes cannot be shared yet, as its copies of blocks come first; nor can what it finds in the cache, which it may write too.
        """
        num_tokens = sequence.num_shareable_tokens
        for other in self._running(sequence):
            if num_written.get(other.request_id, 0) >= num_tokens and self._block_manager.has_settled(other, num_tokens):
                return other
        return None

    def must_wait(self, sequence: Sequence, num_written: Mapping[str, int]) -> bool:
        """A sibling, both preempted before perhaps, is computing what the sequence will share: it should not compute that too."""
        return bool(self._running(sequence)) and self.source(sequence, num_written) is None

    def _running(self, sequence: Sequence) -> list[Sequence]:
        group_id = sequence.request.group_id
        if group_id is None or not sequence.num_shareable_tokens or sequence.is_swapped:  # that one brings its own
            return []
        return [other for other in self._groups.get(group_id, ()) if other.status is SequenceStatus.RUNNING]

    def _leads(self, group: list[Sequence]) -> bool:
        """Whether one of the group is to compute the prompt and has not done so."""
        return any(not sequence.num_generated_tokens and not self.is_held(sequence) for sequence in group)

    def check(self, sequences: Mapping[str, Sequence]) -> None:
        """Verify that it knows the unfinished sequences of groups, and holds none for nothing. Raises AssertionError."""
        known = sorted(sequence.request_id for group in self._groups.values() for sequence in group)
        grouped = [s.request_id for s in sequences.values() if s.request.group_id is not None and s.search is None]
        assert known == sorted(grouped), "a sequence is not in its group"
        for group_id, held in self._held.items():
            assert not held or self._leads(self._groups[group_id]), f"nobody computes the prompt that {held[0].request_id} waits for"

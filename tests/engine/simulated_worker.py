"""A worker that computes nothing but knows what every KV slot must hold.

It applies each step's deltas to tables of its own, as a real one does. Where that writes keys and values, it notes which token history
they stand for; where that attends, it compares the notes with the history that the sequence ought to see. So a block shared, evicted,
swapped, reused or left out wrongly is found at the first read. Its next token is a function of (history, seed, sample index).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.messages import EngineRequest
from engine.outputs import Logprob, TokenLogprobs
from engine.step import NewSequence, StepInput, StepOutput

EOS = 0
VOCAB_SIZE = 24
NOTHING = 0  # the content of a slot that was never written


def histories(token_ids: Iterable[int]) -> list[int]:
    """For each token, a number that stands for it and all before it."""
    result, value = [], 0
    for token_id in token_ids:
        value = hash((value, token_id))
        result.append(value)
    return result


def next_token(history: int, seed: int, sample_index: int, may_stop: bool, stop_token_ids: tuple[int, ...]) -> int:
    drawn = hash((history, seed, sample_index)) % VOCAB_SIZE
    banned = () if may_stop else (EOS, *stop_token_ids)
    while drawn in banned:
        drawn = (drawn + 1) % VOCAB_SIZE
    return drawn


def tokens_alone(request: EngineRequest) -> tuple[list[int], str]:
    """What the request must generate, and why it ends, by the definition alone."""
    params, token_ids, generated = request.params, list(request.prompt_token_ids), 0
    while True:
        may_stop = generated >= params.min_tokens
        token_id = next_token(histories(token_ids)[-1], request.seed, request.sample_index, may_stop, params.stop_token_ids)
        token_ids.append(token_id)
        generated += 1
        ends = (token_id == EOS and not params.ignore_eos) or token_id in params.stop_token_ids
        if may_stop and ends:
            return token_ids[len(request.prompt_token_ids) :], "stop"
        if generated == request.max_tokens:
            return token_ids[len(request.prompt_token_ids) :], "length"


def vector_alone(token_ids: list[int]) -> bytes:
    """What the embedding of a prompt must be, by the definition alone."""
    return str(histories(token_ids)[-1]).encode()


def candidates(history: int, num_candidates: int) -> tuple[Logprob, ...]:
    """The most probable next tokens and their log probabilities, functions of the history alone. Some are equally probable."""
    logprobs = [-(1 + hash((history, token_id)) % 50) / 10 for token_id in range(VOCAB_SIZE)]
    best = sorted(range(VOCAB_SIZE), key=lambda token_id: (-logprobs[token_id], token_id))[:num_candidates]
    return tuple(Logprob(token_id, logprobs[token_id], rank) for rank, token_id in enumerate(best, start=1))


def beams_alone(request: EngineRequest) -> list[tuple[list[int], str]]:
    """What a beam search must find, best first, by the definition alone: every candidate of every beam, at every length."""
    params, prompt = request.params, request.prompt_token_ids
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int], str]] = []
    for length in range(1, request.max_tokens + 1):
        ranked = sorted(
            [
                (total + next_.logprob, [*tokens, next_.token_id])
                for total, tokens in beams
                for next_ in candidates(histories(prompt + tokens)[-1], VOCAB_SIZE)
            ],
            key=lambda beam: -beam[0],
        )
        beams = []
        for place, (total, tokens) in enumerate(ranked):
            ends = tokens[-1] in params.stop_token_ids or (tokens[-1] == EOS and not params.ignore_eos)
            reason = "stop" if ends and length > params.min_tokens else "length" if length == request.max_tokens else None
            if reason is None:
                beams.append((total, tokens))
            elif place < params.n:
                found.append((total / length**params.length_penalty, tokens, reason))
        found = sorted(found, key=lambda hypothesis: -hypothesis[0])[: params.n]
        beams = beams[: params.n]
        hoped_for = request.max_tokens if params.early_stopping == "never" and params.length_penalty > 0 else length
        if not beams or (
            len(found) == params.n and (params.early_stopping is True or beams[0][0] / hoped_for**params.length_penalty <= found[-1][0])
        ):
            break
    return [(tokens, reason) for _, tokens, reason in found]


@dataclass
class Slot:
    """A row of the worker's tables."""

    new: NewSequence
    token_ids: list[int]
    block_ids: list[int]
    pooled: list[int] = field(default_factory=list)  # positions whose hidden states it has had since it took the slot


class Worker:
    """Follows StepInputs to the letter and knows nothing else."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.contents: dict[tuple[int, int], int] = {}  # (block, offset) -> history whose keys and values are there
        self.host_contents: dict[tuple[int, int], int] = {}  # the same of host blocks
        self.slots: dict[int, Slot] = {}

    def execute(self, step: StepInput) -> StepOutput:
        for new in step.new_sequences:
            self.slots[new.slot] = Slot(new, list(new.token_ids), list(new.block_ids))
        for update in step.block_updates:
            table, end = self.slots[update.slot].block_ids, update.first_index + len(update.block_ids)
            table.extend([-1] * (end - len(table)))
            table[update.first_index : end] = update.block_ids
        self._swap(step)
        for source, destination in step.block_copies:
            for offset in range(self.block_size):
                self.contents[destination, offset] = self.contents.get((source, offset), NOTHING)
        assert len(set(step.slots)) == len(step.slots), "a sequence is scheduled twice"
        scheduled = list(zip(step.slots, step.starts, step.query_lens, step.samples, strict=True))
        written: set[tuple[int, int]] = set()
        for slot, start, query_len, _ in scheduled:
            self._write(self.slots[slot], range(start, start + query_len), written)
        output = StepOutput(token_ids=[], logprobs=[], prompt_logprobs=[])
        for slot, start, query_len, samples in scheduled:
            row = self.slots[slot]
            assert query_len > 0, "a scheduled sequence has nothing to compute"
            self._check_reads(row, start + query_len)
            output.prompt_logprobs.append(_prompt_logprobs(row.new, start, query_len))
            logprobs = _beam_logprobs(row, row.new.num_candidates) if samples and row.new.num_candidates else None
            if row.new.pooling is not None:
                row.pooled += range(start, start + query_len)
                if samples:
                    output.pooled[len(output.token_ids)] = self._pool(row)
                samples = False
            output.token_ids.append([self._sample(row, start + query_len)] if samples else [])
            output.logprobs.append(logprobs)
        return output

    def _swap(self, step: StepInput) -> None:
        for pairs, sources, destinations in (
            (step.swap_outs, self.contents, self.host_contents),
            (step.swap_ins, self.host_contents, self.contents),
        ):
            assert len({destination for _, destination in pairs}) == len(pairs), "two blocks are copied to one place"
            for source, destination in pairs:
                for offset in range(self.block_size):
                    content = sources.get((source, offset))
                    if content is None:
                        destinations.pop((destination, offset), None)
                    else:
                        destinations[destination, offset] = content

    def _write(self, row: Slot, positions: range, written: set[tuple[int, int]]) -> None:
        assert positions.stop <= len(row.token_ids), "a token is computed whose value is not there"
        history = histories(row.token_ids)
        for position in positions:
            place = (row.block_ids[position // self.block_size], position % self.block_size)
            assert place not in written, f"two tokens of one step go to slot {place}"
            written.add(place)
            self.contents[place] = history[position]

    def _check_reads(self, row: Slot, seq_len: int) -> None:
        for position, history in enumerate(histories(row.token_ids[:seq_len])):
            place = (row.block_ids[position // self.block_size], position % self.block_size)
            assert self.contents.get(place) == history, f"position {position} of slot {row.new.slot} reads foreign content in {place}"

    def _pool(self, row: Slot) -> bytes:
        assert row.new.pooling is not None
        positions = list(range(row.new.num_prompt_tokens))
        whole = row.pooled == positions if row.new.pooling.needs_every_token else row.pooled[-1:] == positions[-1:]
        assert whole, f"slot {row.new.slot} pools positions {row.pooled}"
        return vector_alone(row.token_ids)

    def _sample(self, row: Slot, position: int) -> int:
        new = row.new
        assert position == len(row.token_ids), "a token is drawn that is not the next one"
        may_stop = position - new.num_prompt_tokens >= new.params.min_tokens
        token_id = next_token(histories(row.token_ids)[-1], new.seed, new.sample_index, may_stop, new.params.stop_token_ids)
        row.token_ids.append(token_id)
        return token_id


def _beam_logprobs(row: Slot, num_candidates: int) -> list[TokenLogprobs]:
    top = candidates(histories(row.token_ids)[-1], num_candidates)
    return [TokenLogprobs(top[0], top)]


def _prompt_logprobs(new: NewSequence, start: int, query_len: int) -> list[TokenLogprobs] | None:
    if new.prompt_logprobs is None:
        return None
    stop = min(start + query_len, new.num_prompt_tokens - 1)
    entries = [TokenLogprobs(Logprob(new.token_ids[i + 1], -float(i + 1), 1), ()) for i in range(start, stop)]
    return entries or None

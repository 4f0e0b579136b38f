"""ModelRunner: one worker's model, cache, sampler and pooler; it turns a StepInput into a StepOutput."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch_buffers import BatchBuffers, SamplingRows, SlotTables, StepArrays
from engine.cache_engine import CacheEngine
from engine.grammar.compiler import GrammarCompiler
from engine.launched_step import LaunchedStep
from engine.logits_processors import LogitsProcessorRegistry
from engine.models import Model
from engine.outputs import TokenLogprobs
from engine.pooler import Pooler
from engine.sampler import ReadyLogits, Sampled, Sampler, token_logprobs
from engine.step import StepInput, StepOutput
from engine.tokens_in_flight import TokensInFlight
from kernels.batch import Batch
from kernels.ops import DrawingOps, Ops

Forward = Callable[[Batch], torch.Tensor]


class ModelRunner:
    """Keeps the running sequences' tokens and block tables in slots, applies each step's deltas, and computes."""

    def __init__(
        self,
        model: Model,
        ops: Ops,
        cache: CacheEngine,
        *,
        max_num_seqs: int,
        token_budget: int,
        max_model_len: int,
        block_size: int,
        eos_token_ids: Iterable[int],
        enforce_eager: bool,
        grammars: GrammarCompiler | None = None,
        processors: LogitsProcessorRegistry | None = None,
    ) -> None:
        self._model = model
        self._ops = ops
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._token_budget = token_budget
        self._tables = SlotTables(max_num_seqs, max_model_len, block_size)
        max_blocks = self._tables.block_tables.shape[1]
        draws = isinstance(ops, DrawingOps) and not enforce_eager
        self._buffers = BatchBuffers(token_budget, max_num_seqs, max_blocks, block_size, ops.device, draws=draws)
        self._sampler = Sampler(ops, self._tables.token_ids, eos_token_ids, grammars, processors)
        self._pooler = Pooler(max_num_seqs)
        self._enforce_eager = enforce_eager
        self._in_flight = None if self._buffers.draws is None else TokensInFlight(self._tables, self._buffers.draws)
        self._unfinished: LaunchedStep | None = None  # that must be finished before another step is launched
        self._count_of_all_rows = torch.tensor([0, 0, max_num_seqs], dtype=torch.int32, device=ops.device)  # `draw` reads the last
        self._last_arrival = 0.0  # when the latest step was seen to be done, by time.monotonic()
        self._forward: Forward
        self._hidden_states: Forward | None
        self.record()

    @torch.inference_mode()
    def record(self) -> None:
        """Record the forward pass, and compile what it needs, so that no request waits for that. The cache's blocks must hold nothing.

        To be called again when the cache has moved: recorded passes know its address.
        """
        self._forward = self._captured(self._forward_with if self._in_flight is None else self._forward_and_draw)
        self._hidden_states = None  # most engines never pool
        if (prepare := getattr(self._forward, "prepare", None)) is not None:
            prepare()
        if self._ops.device.type == "cuda":
            self._warm_up()

    @property
    def launches_ahead(self) -> bool:
        """Whether a step may be launched before the tokens of the one before have come back."""
        return self._in_flight is not None

    def execute(self, step: StepInput) -> StepOutput:
        """Swap and copy blocks, run one forward pass over the flat batch, sample and pool."""
        return self.launch(step).result()

    @torch.inference_mode()
    def launch(self, step: StepInput) -> LaunchedStep:
        """Like `execute`, but the result may still be under way: it is waited for when it is asked for. Steps run in order."""
        launched = time.monotonic()
        if self._unfinished is not None:
            self._unfinished.result()
            self._unfinished = None
        for new in step.new_sequences:
            self._tables.admit(new)
            self._sampler.admit(new)
            self._pooler.admit(new)
            if self._in_flight is not None:
                self._in_flight.forget(new.slot)
        self._tables.apply(step)
        self._cache.swap(step.swap_outs, step.swap_ins)
        self._cache.copy(step.block_copies)

        arrays = StepArrays.of(step)
        if self._in_flight is None:
            output = self._compute(arrays)
            return LaunchedStep(lambda: output)
        if self._pooler.uses(arrays) or _PromptRows.of(arrays, self._tables) is not None:
            # The host reads results as such a step goes, so it starts when the one under way is done: when its own is asked for.
            self._unfinished = LaunchedStep(lambda: self._compute(arrays))
            return self._unfinished
        return self._launch_ahead(arrays, launched, self._in_flight)

    def _warm_up(self) -> None:
        """A short and a long prompt, each beside a decode: kernels are compiled, and the device's memory for the longest step is taken."""
        longest = max(1, min(self._token_budget - 1, self._max_model_len))
        for prompt in (min(64, longest), longest):
            query_lens = np.array([prompt, 1][: self._max_num_seqs])
            slots = np.arange(len(query_lens))
            arrays = StepArrays(slots, np.zeros_like(slots), query_lens, np.ones(len(slots), np.bool_))
            batch = self._buffers.fill(self._tables, arrays)
            logits = self._forward(batch)
        if self._in_flight is not None:
            cast(DrawingOps, self._ops).draw(logits.float(), batch)  # of no row

    def _launch_ahead(self, arrays: StepArrays, launched: float, in_flight: TokensInFlight) -> LaunchedStep:
        rows = arrays.sampling
        in_pass = self._sampler.may_draw_in_pass(rows.slots)
        settings = self._sampler.draw_settings(rows.slots, rows.positions)
        batch = self._buffers.fill(self._tables, arrays, draw_settings=settings, draws_in_pass=in_pass)
        logits = self._forward(batch)
        ready = None if in_pass else self._draw_behind_pass(logits[: len(rows.slots)], batch, rows, in_flight)
        drawn = in_flight.send_back(rows)

        def finish() -> StepOutput:
            output = _new_output(arrays)
            _enter_tokens(output, rows, self._sampler.conclude(ready, in_flight.wait(drawn)))
            # It began when the step before was done, if it was launched by then.
            started, self._last_arrival = max(launched, self._last_arrival), drawn.arrival
            return self._timed(output, started, drawn.arrival, sample_seconds=0.0)

        step = LaunchedStep(finish)
        if ready is not None and ready.own is not None:
            self._unfinished = step  # log probabilities are computed once the tokens are known
        return step

    def _draw_behind_pass(self, logits: torch.Tensor, batch: Batch, rows: SamplingRows, in_flight: TokensInFlight) -> ReadyLogits:
        """Apply the sampler's stages, which read the tokens so far on the host, while the device computes the pass; then draw."""
        assert batch.draws is not None
        in_flight.wait_for_all()
        self._sampler.begin(rows.slots, rows.positions)
        ready = self._sampler.apply_stages(logits, rows.slots, rows.positions)
        cast(DrawingOps, self._ops).draw(ready.logits, replace(batch, draws=replace(batch.draws, counts=self._count_of_all_rows)))
        return ready

    def _compute(self, arrays: StepArrays) -> StepOutput:
        """A step from its beginning to its end."""
        if self._in_flight is not None:
            self._in_flight.wait_for_all()
        started = time.monotonic()
        pools = self._pooler.uses(arrays)
        drawn = self._pooler.only_sampling(arrays) if pools else arrays
        prompt = _PromptRows.of(drawn, self._tables)
        batch = self._buffers.fill(self._tables, drawn, None if prompt is None else prompt.rows)
        _, slots, positions = drawn.sampling
        self._sampler.begin(slots, positions)
        if pools:
            # The pass in two parts, with the hidden states taken out between them. The bits are the same.
            hidden_states = self._compute_hidden_states(batch)
            pooled = self._pooler.pool(arrays, hidden_states)
            logits = self._model.logits(self._ops, hidden_states, batch)
        else:
            pooled = {}
            # A recorded pass has room for one row of logits a sequence; prompt log probabilities need more.
            logits = self._forward(batch) if prompt is None else self._forward_with(self._ops, batch)
        computed = time.monotonic()
        output = msgspec.structs.replace(self._sample(drawn, logits, prompt), pooled=pooled)
        ended = self._last_arrival = time.monotonic()
        return self._timed(output, started, ended, sample_seconds=ended - computed)

    def _timed(self, output: StepOutput, started: float, ended: float, sample_seconds: float) -> StepOutput:
        swap_seconds, num_timed_swaps = self._cache.take_swap_timing()
        return msgspec.structs.replace(
            output,
            compute_seconds=ended - started,
            sample_seconds=sample_seconds,
            swap_seconds=swap_seconds,
            num_timed_swaps=num_timed_swaps,
            started=started,
            ended=ended,
        )

    def _sample(self, arrays: StepArrays, logits: torch.Tensor, prompt: _PromptRows | None) -> StepOutput:
        output = _new_output(arrays)
        rows = arrays.sampling
        num_rows = len(rows.slots)
        if prompt is not None:
            for i, entries in prompt.logprobs(self._ops, logits[num_rows:]):
                output.prompt_logprobs[i] = entries
        if num_rows:
            drawn_from = logits if len(logits) == num_rows else logits[:num_rows]
            sampled = self._sampler.sample(drawn_from, rows.slots, rows.positions)
            # The next step finds the token here: it need not have come back to the scheduler by then.
            self._tables.token_ids[rows.slots, rows.positions] = sampled.token_ids
            _enter_tokens(output, rows, sampled)
        return output

    def _compute_hidden_states(self, batch: Batch) -> torch.Tensor:
        if self._hidden_states is None:
            self._hidden_states = self._captured(self._hidden_states_with)
        return self._hidden_states(batch)

    def _captured(self, forward: Callable[[Ops, Batch], torch.Tensor]) -> Forward:
        """The same forward pass, recorded where the operations can be."""
        capture = getattr(self._ops, "capture", None)
        if capture is None or self._enforce_eager:
            return lambda batch: forward(self._ops, batch)
        recorded: Forward = capture(forward, self._buffers.capacity)
        return recorded

    def _forward_with(self, ops: Ops, batch: Batch) -> torch.Tensor:
        return self._model.forward(ops, batch, self._cache.kv_caches)

    def _forward_and_draw(self, ops: Ops, batch: Batch) -> torch.Tensor:
        drawing = cast(DrawingOps, ops)
        drawing.fetch_tokens(batch)
        logits = self._forward_with(ops, batch)
        drawing.draw(logits, batch)
        return logits

    def _hidden_states_with(self, ops: Ops, batch: Batch) -> torch.Tensor:
        return self._model.hidden_states(ops, batch, self._cache.kv_caches)


def _new_output(arrays: StepArrays) -> StepOutput:
    num_seqs = len(arrays.slots)
    return StepOutput(token_ids=[[] for _ in range(num_seqs)], logprobs=[None] * num_seqs, prompt_logprobs=[None] * num_seqs)


def _enter_tokens(output: StepOutput, rows: SamplingRows, sampled: Sampled) -> None:
    for row, (i, token_id, logprobs) in enumerate(zip(rows.indices.tolist(), sampled.token_ids.tolist(), sampled.logprobs, strict=True)):
        if row in sampled.errors:
            output.errors[i] = sampled.errors[row]
            continue
        output.token_ids[i].append(token_id)
        if logprobs is not None:
            output.logprobs[i] = [logprobs]


class _PromptRows:
    """The rows of a step's batch whose logits give log probabilities of prompt tokens."""

    def __init__(self, owners: list[tuple[int, int]], rows: NDArray[np.int64], targets: NDArray[np.int64], num_top: NDArray[np.int64]):
        self.rows = rows  # [n] rows of the batch
        self._owners = owners  # (index of the scheduled sequence, number of its rows)
        self._targets = targets  # [n] the prompt token that follows
        self._num_top = num_top  # [n]

    @staticmethod
    def of(arrays: StepArrays, tables: SlotTables) -> _PromptRows | None:
        (wanting,) = (tables.num_prompt_logprobs[arrays.slots] >= 0).nonzero()
        if not wanting.size:
            return None
        first_rows = np.cumsum(arrays.query_lens) - arrays.query_lens
        owners, rows, targets, num_top = [], [], [], []
        for i in wanting.tolist():
            slot, start = arrays.slots[i], arrays.starts[i]
            num_rows = int(min(arrays.query_lens[i], tables.num_prompt_tokens[slot] - 1 - start))
            if num_rows > 0:
                owners.append((i, num_rows))
                rows.append(first_rows[i] + np.arange(num_rows))
                targets.append(tables.token_ids[slot, start + 1 : start + 1 + num_rows].astype(np.int64))
                num_top.append(np.full(num_rows, tables.num_prompt_logprobs[slot]))
        if not owners:
            return None
        return _PromptRows(owners, np.concatenate(rows), np.concatenate(targets), np.concatenate(num_top))

    def logprobs(self, ops: Ops, logits: torch.Tensor) -> Iterable[tuple[int, list[TokenLogprobs]]]:
        entries = token_logprobs(ops, logits.float(), self._targets, self._num_top)
        for i, num_rows in self._owners:
            yield i, entries[:num_rows]
            entries = entries[num_rows:]

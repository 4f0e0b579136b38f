"""ModelRunner: one worker's model, cache, sampler and pooler; it turns a StepInput into a StepOutput."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.cache_engine import CacheEngine
from engine.grammar.compiler import GrammarCompiler
from engine.logits_processors import LogitsProcessorRegistry
from engine.models import Model
from engine.outputs import TokenLogprobs
from engine.pooler import Pooler
from engine.sampler import Sampler, token_logprobs
from engine.step import StepInput, StepOutput
from kernels.batch import Batch
from kernels.ops import Ops

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
        self._tables = SlotTables(max_num_seqs, max_model_len, block_size)
        self._buffers = BatchBuffers(token_budget, max_num_seqs, self._tables.block_tables.shape[1], block_size, ops.device)
        self._sampler = Sampler(ops, self._tables.token_ids, eos_token_ids, grammars, processors)
        self._pooler = Pooler(max_num_seqs)
        self._enforce_eager = enforce_eager
        self._forward = self._captured(self._forward_with)
        if (prepare := getattr(self._forward, "prepare", None)) is not None:
            with torch.inference_mode():
                prepare()
        self._hidden_states: Forward | None = None  # most engines never pool

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Swap and copy blocks, run one forward pass over the flat batch, sample and pool."""
        for new in step.new_sequences:
            self._tables.admit(new)
            self._sampler.admit(new)
            self._pooler.admit(new)
        self._tables.apply(step)
        self._cache.swap(step.swap_outs, step.swap_ins)
        self._cache.copy(step.block_copies)

        started = time.perf_counter()
        arrays = StepArrays.of(step)
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
        computed = time.perf_counter()
        output = self._sample(drawn, logits, prompt)
        ended = time.perf_counter()
        swap_seconds, num_timed_swaps = self._cache.take_swap_timing()
        return msgspec.structs.replace(
            output,
            pooled=pooled,
            compute_seconds=ended - started,
            sample_seconds=ended - computed,
            swap_seconds=swap_seconds,
            num_timed_swaps=num_timed_swaps,
        )

    def _sample(self, arrays: StepArrays, logits: torch.Tensor, prompt: _PromptRows | None) -> StepOutput:
        num_seqs = len(arrays.slots)
        output = StepOutput(token_ids=[[] for _ in range(num_seqs)], logprobs=[None] * num_seqs, prompt_logprobs=[None] * num_seqs)
        logits = logits.float()
        sampling, slots, positions = arrays.sampling
        if prompt is not None:
            for i, entries in prompt.logprobs(self._ops, logits[len(sampling) :]):
                output.prompt_logprobs[i] = entries
        if sampling.size:
            sampled = self._sampler.sample(logits[: len(sampling)], slots, positions)
            # The next step finds the token here: it need not have come back to the scheduler by then.
            self._tables.token_ids[slots, positions] = sampled.token_ids
            for row, (i, token_id, logprobs) in enumerate(
                zip(sampling.tolist(), sampled.token_ids.tolist(), sampled.logprobs, strict=True)
            ):
                if row in sampled.errors:
                    output.errors[i] = sampled.errors[row]
                    continue
                output.token_ids[i].append(token_id)
                if logprobs is not None:
                    output.logprobs[i] = [logprobs]
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

    def _hidden_states_with(self, ops: Ops, batch: Batch) -> torch.Tensor:
        return self._model.hidden_states(ops, batch, self._cache.kv_caches)


class _PromptRows:
    """The rows of a step's batch whose logits give log probabilities of prompt tokens."""

    def __init__(self, owners: list[tuple[int, int]], rows: NDArray[np.int64], targets: NDArray[np.int64], num_top: NDArray[np.int64]):
        self.rows = rows  # [n] rows of the batch
        self._owners = owners  # (index of the scheduled sequence, number of its rows)
        self._targets = targets  # [n] the prompt token that follows
        self._num_top = num_top  # [n]

    @staticmethod
    def of(arrays: StepArrays, tables: SlotTables) -> _PromptRows | None:
        wanting = np.flatnonzero(tables.num_prompt_logprobs[arrays.slots] >= 0)
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

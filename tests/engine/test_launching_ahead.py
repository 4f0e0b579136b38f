"""Steps whose passes draw their tokens themselves, launched before the tokens of the step before have come back: Triton interprets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from engine_settings import small_llm
from small_models import new_llama, save_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from engine import batch_buffers, sampler
from engine.batch_buffers import SamplingRows, SlotTables
from engine.llm import LLM
from engine.packed_inputs import PackedInputs
from engine.sampling_params import SamplingParams
from engine.step import NewSequence, StepInput
from engine.tokens_in_flight import TokensInFlight
from kernels import triton as triton_ops
from kernels.sampling import NUM_WORDS, Draws

PROMPTS = [[7 + i, 8, 9, 40 + i] for i in range(3)]
PLAIN = [
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=4, top_p=0.8, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=4, max_tokens=5, min_p=0.01, ignore_eos=True),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("one-layer")
    new_llama(initializer_range=0.2, num_hidden_layers=1, hidden_size=32, num_attention_heads=2, num_key_value_heads=1).save_pretrained(
        directory
    )
    save_tokenizer(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def copies_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: inputs are filled in one place and read in another."""
    monkeypatch.setattr(batch_buffers, "PackedInputs", lambda shapes, device, *, copies: PackedInputs(shapes, device, copies=True))


def triton_llm(model: str, **settings: Any) -> LLM:
    return small_llm(**{"model": model, "kernels": "triton", "async_scheduling": True, "max_model_len": 64, "max_num_seqs": 4} | settings)


def tokens_of(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def test_tokens_are_the_references_and_most_steps_are_launched_before_the_host_has_seen_the_last_ones(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens_of(small_llm(model=model, kernels="reference"), PROMPTS, PLAIN)
    num_unseen: list[int] = []
    send_back = TokensInFlight.send_back

    def watched(self: TokensInFlight, rows: SamplingRows) -> Any:
        num_unseen.append(len(self._under_way))
        return send_back(self, rows)

    monkeypatch.setattr(TokensInFlight, "send_back", watched)
    llm = triton_llm(model, max_num_batched_tokens=7)  # a prompt is cut, so that chunks and decodes share steps
    assert tokens_of(llm, PROMPTS, PLAIN) == expected
    assert num_unseen == [0] + [1] * (len(num_unseen) - 1)
    steps = llm.engine.call("timeline")
    assert all(before.execute_end <= step.execute_start for before, step in pairwise(steps))
    assert tokens_of(triton_llm(model, async_scheduling=False), PROMPTS, PLAIN) == expected


def test_a_token_is_the_same_whether_the_pass_draws_it_or_the_sampler_because_of_a_neighbour(model: str) -> None:
    llm = triton_llm(model)
    alone = tokens_of(llm, PROMPTS, PLAIN)
    # Both end first, so that the others are drawn in three ways, one after the other; prompt_logprobs have a step of their own kind, too.
    biased = SamplingParams(temperature=0.0, max_tokens=4, logit_bias={5: 100.0}, repetition_penalty=1.2)
    with_logprobs = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    params = [biased, with_logprobs, *PLAIN]
    reference = small_llm(model=model, kernels="reference")
    expected = reference.generate([[3, 4], [3, 4], *PROMPTS], params, use_tqdm=False)
    outputs = triton_llm(model, max_num_seqs=5).generate([[3, 4], [3, 4], *PROMPTS], params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs[2:]] == alone
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in expected]
    logprobs = [[entry.chosen.logprob for entry in outputs[1].outputs[0].logprobs] for outputs in (outputs, expected)]
    np.testing.assert_allclose(*logprobs, rtol=1e-4)


def test_what_the_host_must_read_keeps_no_result_of_the_step_before_back(model: str) -> None:
    """A step is launched while its predecessor computes, but nobody waits for its own end before it is asked for."""
    runner = triton_llm(model).engine._executor._runner  # type: ignore[attr-defined]
    for slot, params in enumerate((SamplingParams(presence_penalty=0.5), SamplingParams(logprobs=1), SamplingParams(prompt_logprobs=1))):
        new = NewSequence(slot, PROMPTS[0], 4, params, 1, 0, [slot], params.prompt_logprobs)
        first = runner.launch(StepInput([new], [], [], [slot], [0], [4], [True]))
        assert first._output is None
        second = runner.launch(StepInput([], [], [], [slot], [4], [1], [True]))
        assert second._output is None
        assert len(first.result().token_ids[0]) == len(second.result().token_ids[0]) == 1


def test_a_preempted_sequence_and_one_that_takes_a_slot_with_a_token_under_way_get_their_own_tokens(model: str) -> None:
    prompts = [list(range(10 + i, 22 + i)) for i in range(5)]
    plain = small_llm(model=model, kernels="reference")
    params = [SamplingParams(temperature=0.0, max_tokens=7 + i % 3, ignore_eos=True) for i in range(5)]
    expected = tokens_of(plain, prompts, params)
    # Some end at a token that nobody foresaw, and are computed once more for nothing.
    params = [
        msgspec.structs.replace(one, stop_token_ids=tokens[2:3]) if i % 2 else one
        for i, (one, tokens) in enumerate(zip(params, expected, strict=True))
    ]
    expected = tokens_of(plain, prompts, params)
    llm = triton_llm(model, max_model_len=32, num_gpu_blocks_override=3, max_num_batched_tokens=24)
    assert tokens_of(llm, prompts, params) == expected
    assert llm.engine.stats().preemptions_total > 0
    llm.engine.check()


def test_a_row_without_a_token_ends_its_request_with_an_error_and_no_other(model: str) -> None:
    llm = triton_llm(model)
    runner = llm.engine._executor._runner  # type: ignore[attr-defined]
    forward_with = runner._forward_with
    num_passes = 0

    def broken(ops: Any, batch: Any) -> torch.Tensor:
        nonlocal num_passes
        num_passes += 1
        logits: torch.Tensor = forward_with(ops, batch)
        if num_passes == 3:
            logits[1] = torch.nan
        return logits

    expected = tokens_of(llm, PROMPTS[:1], PLAIN[:1])
    runner._forward_with = broken
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS[:2], [PLAIN[0]] * 2, use_tqdm=False)]
    assert (outputs[1].finish_reason, outputs[1].error) == ("error", sampler._NOTHING_LEFT)
    assert outputs[0].token_ids == expected[0]


class Watch(TorchDispatchMode):
    """Notes PyTorch's operations and Triton's launches, those of a recorded body apart."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: Counter[str] = Counter()
        self.launches = 0
        self.replays = 0
        self.is_inside = False

    def record(self, body: Any) -> Any:
        def replay() -> torch.Tensor:
            self.is_inside = True
            result: torch.Tensor = body()
            self.is_inside = False
            self.replays += 1
            return result

        return replay

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A view of memory that is there already is nothing that the device hears of.
        if not self.is_inside and not func.is_view:
            self.outside[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_outside_of_the_graph_a_decode_step_copies_its_inputs_and_its_tokens_and_does_nothing_else(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr(triton_ops, "repeat_eagerly", watch.record)
    launch = GridExecutor.__call__

    def noted(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        watch.launches += not watch.is_inside
        launch(self, *args, **kwargs)

    llm = triton_llm(model)
    runner = llm.engine._executor._runner  # type: ignore[attr-defined]
    new = [NewSequence(slot, PROMPTS[slot], 4, PLAIN[slot], 1, 0, [slot], None) for slot in range(3)]
    prefill = StepInput(new, [], [], [0, 1, 2], [0, 0, 0], [4, 4, 4], [True] * 3)
    pending = [runner.launch(prefill)]
    monkeypatch.setattr(GridExecutor, "__call__", noted)
    with watch:
        for position in (4, 5, 6):
            pending.append(runner.launch(StepInput([], [], [], [0, 1, 2], [position] * 3, [1] * 3, [True] * 3)))
            assert len(pending.pop(0).result().token_ids) == 3
    assert (watch.replays, watch.launches) == (3, 0)
    assert watch.outside == {"aten.copy_.default": 2 * 3}


def test_a_token_that_comes_late_is_not_taken_for_one_of_the_slots_next_sequence() -> None:
    tables = SlotTables(2, 8, 4)
    ints = torch.zeros(2, dtype=torch.int32)
    draws = Draws(ints, torch.zeros(2, NUM_WORDS, dtype=torch.int64), ints, torch.tensor([30, -1]), ints)
    in_flight = TokensInFlight(tables, draws)
    both = SamplingRows(np.array([0, 1]), np.array([1, 0]), np.array([5, 3]))  # indices, slots, positions
    drawn = in_flight.send_back(both)
    assert (tables.token_ids[1, 5], tables.token_ids[0, 3]) == (-2, -1)
    in_flight.forget(1)
    tables.token_ids[1, 5] = 77  # of the next sequence
    in_flight.wait_for_all()
    assert in_flight.wait(drawn).tolist() == [30, -1]
    assert (tables.token_ids[1, 5], tables.token_ids[0, 3]) == (77, 0)

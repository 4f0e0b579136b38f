"""The stages that change logits before a draw, each against its definition written out token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.reasoning.budget import ThinkingBudget
from engine.sampler import Sampled, Sampler
from engine.sampling_params import SamplingParams
from engine.stages import LogitsRows, build_stages
from engine.step import NewSequence
from kernels.reference import ReferenceOps

VOCAB = 12
EOS = 2
MAX_LEN = 40
OPS = ReferenceOps(torch.device("cpu"), torch.float32)


def new_sequence(slot: int, prompt: list[int], params: SamplingParams, generated: list[int] | None = None) -> NewSequence:
    return NewSequence(
        slot=slot,
        token_ids=prompt + (generated or []),
        num_prompt_tokens=len(prompt),
        params=params,
        seed=slot,
        sample_index=0,
        block_ids=[],
        prompt_logprobs=None,
    )


def staged(prompt: list[int], output: list[int], params: SamplingParams, row: list[float]) -> list[float]:
    """The row after all stages, for a sequence that has generated `output`."""
    table = np.zeros((1, MAX_LEN), np.int32)
    table[0, : len(prompt) + len(output)] = prompt + output
    logits = torch.tensor([row])
    for stage in build_stages(table, [EOS]):
        if stage.admit(new_sequence(0, prompt, params)):
            stage.apply(LogitsRows(logits, np.array([0]), np.array([0]), np.array([len(prompt) + len(output)]), {}))
    changed: list[float] = logits[0].tolist()
    return changed


def by_definition(prompt: list[int], output: list[int], params: SamplingParams, row: list[float]) -> list[float]:
    """The same, written from the documentation: one token at a time, in the documented order."""
    result = []
    for token_id, logit in enumerate(row):
        value = np.float32(logit)
        if token_id in prompt or token_id in output:
            factor = np.float32(params.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        value -= np.float32(params.frequency_penalty) * np.float32(output.count(token_id))
        value -= np.float32(params.presence_penalty) if token_id in output else np.float32(0)
        value += np.float32(params.logit_bias.get(token_id, 0.0))
        if params.allowed_token_ids is not None and token_id not in params.allowed_token_ids:
            value = np.float32(-math.inf)
        for *before, last in params.bad_words_token_ids:
            if last == token_id and len(before) <= len(output) and before == output[len(output) - len(before) :]:
                value = np.float32(-math.inf)
        if len(output) < params.min_tokens and token_id in ({*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})):
            value = np.float32(-math.inf)
        result.append(float(value))
    return result


ids = st.integers(0, VOCAB - 1)
texts = st.lists(ids, max_size=10)
rows = st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=VOCAB, max_size=VOCAB)
penalties = st.sampled_from([0.0, 0.0, 0.7, 2.0, -1.3])
few_ids = st.integers(0, 3)  # so that banned sequences do come up
all_params = st.builds(
    SamplingParams,
    presence_penalty=penalties,
    frequency_penalty=penalties,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.6]),
    logit_bias=st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 3.0, 100.0]), max_size=4),
    allowed_token_ids=st.none() | st.lists(ids, min_size=1, max_size=6).map(tuple),
    bad_words_token_ids=st.lists(st.lists(few_ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(ids, max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)


@given(texts, texts | st.lists(few_ids, max_size=8), all_params, rows)
@settings(max_examples=100, deadline=None)
def test_the_stages_together_do_what_the_documentation_says_in_the_documented_order(
    prompt: list[int], output: list[int], params: SamplingParams, row: list[float]
) -> None:
    assert staged(prompt, output, params, row) == by_definition(prompt, output, params, row)


ROW = [0.5 * i - 2 for i in range(VOCAB)]


@pytest.mark.parametrize(
    ("params", "prompt", "output"),
    [
        ({"presence_penalty": 1.5}, [1, 2], [3, 3, 4]),
        ({"frequency_penalty": 1.5}, [1, 2], [3, 3, 4]),
        ({"repetition_penalty": 1.5}, [1, 9], [3, 3, 10]),
        ({"logit_bias": {0: -100.0, 5: 1.0}}, [1], [2]),
        ({"allowed_token_ids": (3, 4)}, [], []),
        ({"bad_words_token_ids": ((5,), (3, 4), (9, 3, 6))}, [9], [3]),
        ({"bad_words_token_ids": ((3, 4), (9, 3, 6))}, [1], [9, 3]),
        ({"min_tokens": 2, "stop_token_ids": (7,)}, [1], [1]),
    ],
)
def test_each_stage_alone_does_what_the_documentation_says(params: dict[str, Any], prompt: list[int], output: list[int]) -> None:
    changed = staged(prompt, output, SamplingParams(**params), ROW)
    assert changed == by_definition(prompt, output, SamplingParams(**params), ROW)
    assert changed != ROW


def test_what_a_mask_has_taken_no_bias_gives_back() -> None:
    params = SamplingParams(
        logit_bias={5: 100.0}, allowed_token_ids=(3, 5), bad_words_token_ids=((5,),), logits_processors=(lambda output, row: row + 1000,)
    )
    assert [token_id for token_id, logit in enumerate(staged([], [], params, ROW)) if logit > -math.inf] == [3]


def test_a_row_that_uses_no_stage_keeps_its_bits_beside_rows_that_use_all() -> None:
    table = np.zeros((2, MAX_LEN), np.int32)
    stages = build_stages(table, [EOS])
    params = SamplingParams(
        presence_penalty=1.0,
        logit_bias={3: 1.0},
        allowed_token_ids=(3,),
        bad_words_token_ids=((4,),),
        min_tokens=1,
        repetition_penalty=2.0,
        thinking=ThinkingBudget(max_tokens=5, begin_token_ids=(5,), end_token_ids=(6,)),
    )
    assert [stage.admit(new_sequence(0, [1, 2], SamplingParams())) for stage in stages] == [False] * 7
    assert [stage.admit(new_sequence(1, [1, 2], params)) for stage in stages] == [True, True, False, True, True, True, True]


PARAMS = [
    SamplingParams(presence_penalty=0.5, frequency_penalty=0.3, seed=1),
    SamplingParams(repetition_penalty=1.3, top_p=0.9, logprobs=2),
    SamplingParams(),
    SamplingParams(logit_bias={1: 2.0, 7: -100.0}, temperature=0.7),
    SamplingParams(temperature=0, frequency_penalty=1.9),
    SamplingParams(bad_words_token_ids=((3,), (1, 2), (1, 1, 4))),
    SamplingParams(allowed_token_ids=(1, 2, 5), min_tokens=30),
    SamplingParams(logits_processors=(lambda output, row: row + len(output),), min_p=0.05),
]


class Bench:
    """Sequences that generate from logits that are a function of the slot and the position."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self.prompts = prompts
        self.table = np.zeros((len(prompts), MAX_LEN), np.int32)
        self.sampler = Sampler(OPS, self.table, [EOS])
        self.generated: list[list[int]] = [[] for _ in prompts]

    def admit(self, slot: int) -> None:
        new = new_sequence(slot, self.prompts[slot], PARAMS[slot % len(PARAMS)], self.generated[slot])
        self.table[slot] = 0
        self.table[slot, : len(new.token_ids)] = new.token_ids
        self.sampler.admit(new)

    def step(self, slots: list[int]) -> Sampled:
        positions = [len(self.prompts[slot]) + len(self.generated[slot]) for slot in slots]
        seeds = [1000 * slot + position for slot, position in zip(slots, positions, strict=True)]
        logits = torch.stack([torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        sampled = self.sampler.sample(logits, np.array(slots), np.array(positions))
        for slot, position, token_id in zip(slots, positions, sampled.token_ids.tolist(), strict=True):
            self.table[slot, position] = token_id
            self.generated[slot].append(token_id)
        return sampled


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_tokens_are_the_same_alone_in_any_batch_and_after_being_resumed(data: st.DataObject) -> None:
    prompts = [[(3 * slot + i) % VOCAB for i in range(slot)] for slot in range(8)]
    alone = Bench(prompts)
    for slot in range(8):
        alone.admit(slot)
        for _ in range(15):
            alone.step([slot])
    mixed = Bench(prompts)
    for slot in range(8):
        mixed.admit(slot)
    while unfinished := [slot for slot in range(8) if len(mixed.generated[slot]) < 15]:
        batch = data.draw(st.permutations(unfinished).map(lambda order: order[: len(order) // 2 + 1]))
        mixed.step(batch)
        if data.draw(st.booleans()):
            mixed.admit(batch[0])
    assert mixed.generated == alone.generated


def test_counts_follow_a_sequence_that_goes_back() -> None:
    table = np.zeros((1, MAX_LEN), np.int32)
    penalties = build_stages(table, [EOS])[0]
    params = SamplingParams(frequency_penalty=1.0)
    penalties.admit(new_sequence(0, [1], params))
    for output in ([3, 3, 3, 4], [3, 5], [3, 5, 5]):
        table[0, 1 : 1 + len(output)] = output
        logits = torch.zeros(1, VOCAB)
        penalties.apply(LogitsRows(logits, np.array([0]), np.array([0]), np.array([1 + len(output)]), {}))
        assert logits[0].tolist() == [-float(output.count(token_id)) for token_id in range(VOCAB)]


def test_an_output_of_many_different_tokens_is_counted_to_its_end() -> None:
    num_tokens = 1000
    output = [token_id % 700 for token_id in range(num_tokens)]
    table = np.array([[0, *output]], np.int32)
    stage = build_stages(table, [EOS])[0]
    stage.admit(new_sequence(0, [0], SamplingParams(frequency_penalty=1.0)))
    for generated in range(num_tokens + 1):
        logits = torch.zeros(1, num_tokens)
        stage.apply(LogitsRows(logits, np.array([0]), np.array([0]), np.array([1 + generated]), {}))
    assert (-logits[0]).tolist() == [output.count(token_id) for token_id in range(num_tokens)]


def test_a_slot_forgets_the_stages_of_the_sequence_before() -> None:
    bench = Bench([[1, 2]])
    bench.sampler.admit(new_sequence(0, [1, 2], SamplingParams(allowed_token_ids=(5,), frequency_penalty=2.0, logit_bias={5: 1.0})))
    assert bench.step([0]).token_ids.tolist() == [5]
    bench.sampler.admit(new_sequence(0, [1, 2], SamplingParams(temperature=0)))
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    assert bench.sampler.sample(logits.clone(), np.array([0]), np.array([2])).token_ids.tolist() == [VOCAB - 1]


# -- logits processors


def raising(output: list[int], row: torch.Tensor) -> torch.Tensor:
    row.zero_()
    raise RuntimeError("no mercy")


@pytest.mark.parametrize(
    ("processor", "message"),
    [(raising, "raising failed: RuntimeError: no mercy"), (lambda output, row: None, "NoneType"), (lambda output, row: row[:3], r"\[3\]")],
)
def test_a_failing_processor_is_an_error_of_its_own_row_and_of_no_other(processor: Any, message: str) -> None:
    def run(neighbour: SamplingParams) -> Sampled:
        bench = Bench([[1], [1], [1]])
        for slot, params in enumerate([SamplingParams(), neighbour, SamplingParams(presence_penalty=1.0)]):
            bench.sampler.admit(new_sequence(slot, [1], params))
        return bench.step([0, 1, 2])

    failed, undisturbed = run(SamplingParams(logits_processors=(processor,))), run(SamplingParams())
    assert list(failed.errors) == [1]
    with pytest.raises(RuntimeError, match=message):
        raise RuntimeError(failed.errors[1])
    assert failed.token_ids[[0, 2]].tolist() == undisturbed.token_ids[[0, 2]].tolist()


def test_processors_are_given_the_generated_tokens_and_run_one_after_the_other() -> None:
    seen = []

    def first(output: list[int], row: torch.Tensor) -> torch.Tensor:
        seen.append(output)
        return torch.zeros_like(row)

    def second(output: list[int], row: torch.Tensor) -> torch.Tensor:
        row[4] = 1.0
        return row

    changed = staged([7, 8], [3, 4], SamplingParams(logits_processors=(first, second)), ROW)
    assert changed == [1.0 if token_id == 4 else 0.0 for token_id in range(VOCAB)]
    assert seen == [[3, 4]]


# -- ranges


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"bad_words": ("fine", " ")}, "bad_words"),
        ({"bad_words": ("x",) * 257}, "bad_words"),
        ({"bad_words_token_ids": ((),)}, "bad_words_token_ids"),
    ],
)
def test_values_out_of_range_are_refused_by_name(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**params)
    assert refusal.value.param == param

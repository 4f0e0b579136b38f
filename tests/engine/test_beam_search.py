"""Beam search finds what Hugging Face's `generate` finds, whatever else runs, and gives every block back."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from engine_settings import small_llm
from small_models import new_llama, save_tokenizer
from transformers import LlamaForCausalLM

from engine.errors import InvalidRequestError
from engine.llm import LLM
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput

ENDS = tuple(range(30, 60))  # many, so that hypotheses end at different lengths


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    return new_llama()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, reference: LlamaForCausalLM) -> str:
    directory: Path = tmp_path_factory.mktemp("beams")
    reference.save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return small_llm(model=model)


def prompt_of(length: int) -> list[int]:
    return [60 + (7 * i + i // 5) % 200 for i in range(length)]


def beams(width: int = 4, max_tokens: int = 20, **others: Any) -> SamplingParams:
    settings: dict[str, Any] = {"stop_token_ids": ENDS, "ignore_eos": True, "logprobs": 0, **others}
    return SamplingParams(use_beam_search=True, n=width, max_tokens=max_tokens, **settings)


def found(output: RequestOutput, length_penalty: float = 1.0) -> tuple[list[list[int]], list[float]]:
    scores = [sum(entry.chosen.logprob for entry in c.logprobs or ()) / len(c.token_ids) ** length_penalty for c in output.outputs]
    return [c.token_ids for c in output.outputs], scores


def found_by_transformers(
    reference: LlamaForCausalLM, prompt: list[int], width: int, **settings: Any
) -> tuple[list[list[int]], list[float]]:
    with torch.inference_mode():
        result = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            eos_token_id=list(ENDS),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
    sequences = []
    for row in result.sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in ENDS), len(row))
        sequences.append(row[:end])
    return sequences, result.sequences_scores.tolist()


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize(("width", "length"), [(4, 16), (2, 37), (7, 1)])
def test_sequences_and_scores_are_those_of_transformers(
    llm: LLM, reference: LlamaForCausalLM, width: int, length: int, length_penalty: float, early_stopping: bool | str
) -> None:
    prompt = prompt_of(length)
    rules = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    output = llm.generate(prompt, beams(width, **rules), use_tqdm=False)[0]
    sequences, scores = found_by_transformers(reference, prompt, width, max_new_tokens=20, **rules)
    assert found(output, length_penalty)[0] == sequences
    assert found(output, length_penalty)[1] == pytest.approx(scores, abs=1e-4)
    for completion in output.outputs:
        ended = completion.token_ids[-1] in ENDS
        assert (completion.finish_reason, completion.stop_reason) == (("stop", completion.token_ids[-1]) if ended else ("length", None))
    assert output.finished
    llm.engine.check()
    assert llm.engine.stats().blocks_referenced == 0


def test_one_beam_is_greedy(llm: LLM) -> None:
    greedy = llm.generate(prompt_of(20), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False)[0]
    one = llm.generate(prompt_of(20), beams(1, stop_token_ids=()), use_tqdm=False)[0]
    assert one.outputs[0].token_ids == greedy.outputs[0].token_ids


def test_nothing_ends_before_min_tokens(llm: LLM) -> None:
    output = llm.generate(prompt_of(9), beams(4, min_tokens=12), use_tqdm=False)[0]
    assert all(len(c.token_ids) > 12 or c.finish_reason == "length" for c in output.outputs)


def test_the_prompt_is_computed_once_and_beams_share_what_they_have_in_common(model: str) -> None:
    llm = small_llm(model=model, enable_prefix_caching=False)
    steps = []
    execute = llm.engine._executor.execute
    llm.engine._executor.execute = lambda step: (steps.append(step), execute(step))[1]  # type: ignore[method-assign]
    for request in llm._builder.build("r", prompt_of(200), beams(8, stop_token_ids=())):
        llm.engine.add_request(request)
    held = []
    while llm.engine.has_work:
        llm.engine.step()
        llm.engine.check()
        held.append(llm.engine.stats().blocks_referenced)
    assert sum(sum(step.query_lens) for step in steps) == 200 + 19 * 8
    assert max(held) <= 200 // 16 + 2 * 8
    assert any(step.block_copies for step in steps)


def test_beams_find_the_same_in_a_crowd_and_when_they_are_preempted(model: str, llm: LLM) -> None:
    prompts = [prompt_of(11 + 7 * i) for i in range(6)]
    params = [
        beams(4, max_tokens=40, min_tokens=20) if i % 2 else SamplingParams(seed=i, max_tokens=60, ignore_eos=True, logprobs=0)
        for i in range(6)
    ]
    alone = [llm.generate(p, s, use_tqdm=False)[0] for p, s in zip(prompts, params, strict=True)]
    crowded = {
        "together": small_llm(model=model),
        "in small chunks": small_llm(model=model, max_num_batched_tokens=16),
        "overlapped": small_llm(model=model, async_scheduling=True),
        "overlapped, preempted": small_llm(model=model, async_scheduling=True, num_gpu_blocks_override=24, max_model_len=128),
        "few slots": small_llm(model=model, max_num_seqs=4),
        "preempted": small_llm(model=model, num_gpu_blocks_override=24, max_model_len=128),
        "preempted, not cached": small_llm(model=model, num_gpu_blocks_override=24, max_model_len=128, enable_prefix_caching=False),
        "preempted, with swap space": small_llm(
            model=model, num_gpu_blocks_override=24, max_model_len=128, swap_space=16 << 20, preemption_mode="swap"
        ),
    }
    for how, other in crowded.items():
        outputs = other.generate(prompts, params, use_tqdm=False)
        assert [found(o) for o in outputs] == [found(o) for o in alone], how
        other.engine.check()
        assert other.engine.stats().blocks_referenced == 0
        assert ("preempted" in how) == (other.engine.stats().preemptions_total > 0), how


def test_aborting_one_beam_ends_its_search_and_frees_everything(model: str) -> None:
    llm = small_llm(model=model, enable_prefix_caching=False)
    requests = llm._builder.build("r", prompt_of(50), beams(4))
    for request in requests[:3]:
        llm.engine.add_request(request)
    assert llm.engine.step() == []  # one beam is on its way yet
    llm.engine.add_request(requests[3])
    for _ in range(5):
        llm.engine.step()
        llm.engine.check()
    llm.engine.abort_requests([request.request_id for request in requests])
    llm.engine.check()
    stats = llm.engine.stats()
    assert (stats.blocks_free, stats.num_running, stats.num_waiting) == (stats.blocks_total, 0, 0)
    for request in requests[:2]:
        llm.engine.add_request(request)
    llm.engine.abort_requests(["r#1"])
    llm.engine.check()
    assert not llm.engine.has_work


def test_prompt_log_probabilities_come_with_the_beams(llm: LLM) -> None:
    output = llm.generate(prompt_of(40), beams(3, prompt_logprobs=1), use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 40
    assert found(output) == found(llm.generate(prompt_of(40), beams(3), use_tqdm=False)[0])


@pytest.mark.parametrize(
    ("settings", "params", "param", "message"),
    [
        ({"max_num_seqs": 4}, beams(5), "n", "at most 4 beams"),
        ({"num_gpu_blocks_override": 16}, beams(4, max_tokens=60), "max_tokens", "need 20 KV blocks of 16 tokens, but there are 16"),
    ],
)
def test_a_search_whose_beams_cannot_run_at_once_is_refused(
    model: str, settings: dict[str, Any], params: SamplingParams, param: str, message: str
) -> None:
    llm = small_llm(**{"model": model, **settings})
    with pytest.raises(InvalidRequestError, match=message) as refusal:
        llm.generate(prompt_of(10), params, use_tqdm=False)
    assert refusal.value.param == param


def test_a_search_that_just_fits_the_pool_is_served(model: str, llm: LLM) -> None:
    tight = small_llm(model=model, num_gpu_blocks_override=16, max_model_len=100, enable_prefix_caching=False)
    params = beams(4, max_tokens=48, stop_token_ids=())
    assert found(tight.generate(prompt_of(16), params, use_tqdm=False)[0]) == found(llm.generate(prompt_of(16), params, use_tqdm=False)[0])


@pytest.mark.parametrize(
    ("others", "param"),
    [
        ({"use_beam_search": True, "n": 2, "best_of": 3}, "best_of"),
        ({"use_beam_search": True, "stop": ("x",)}, "stop"),
        ({"use_beam_search": True, "logit_bias": {3: 1.0}}, "logit_bias"),
        ({"use_beam_search": True, "presence_penalty": 1.0}, "presence_penalty"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "length_penalty": 11.0}, "length_penalty"),
        ({"use_beam_search": True, "early_stopping": "always"}, "early_stopping"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(others: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**others)
    assert refusal.value.param == param


def test_a_beam_whose_probabilities_are_no_numbers_ends_its_search_alone(model: str, llm: LLM) -> None:
    broken = small_llm(model=model)
    execute = broken.engine._executor.execute

    def with_an_error(step: StepInput) -> Future[StepOutput]:
        output = execute(step).result()
        errors = {0: "not finite"} if len(step.slots) == 5 else {}  # once four beams and the other sequence decode
        future: Future[StepOutput] = Future()
        future.set_result(msgspec.structs.replace(output, errors=errors))
        return future

    broken.engine._executor.execute = with_an_error  # type: ignore[method-assign]
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    searched, other = broken.generate([prompt_of(20), prompt_of(30)], [beams(4), greedy], use_tqdm=False)
    assert [c.finish_reason for c in searched.outputs] == ["error"] * 4
    assert other.outputs[0].token_ids == llm.generate(prompt_of(30), greedy, use_tqdm=False)[0].outputs[0].token_ids
    broken.engine.check()
    assert broken.engine.stats().blocks_referenced == 0

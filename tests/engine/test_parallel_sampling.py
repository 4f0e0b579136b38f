"""n samples of one prompt: the prompt is computed once, its blocks are shared, and the tokens are those of separate requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_settings import small_llm
from small_models import new_llama, save_tokenizer

from engine.llm import LLM
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams
from engine.step import StepInput

BLOCK_SIZE = 16
PARAMS = SamplingParams(n=8, temperature=1.0, seed=7, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("long-context")
    new_llama(max_position_embeddings=4096).save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


@pytest.fixture(scope="module")
def new_llm(model: str) -> Callable[..., LLM]:
    def new(**settings: Any) -> LLM:
        return small_llm(**{"model": model, "max_model_len": 2100, "block_size": BLOCK_SIZE, **settings})

    return new


def prompt_of(length: int) -> list[int]:
    return [3 + (7 * i + i // 11) % 300 for i in range(length)]


def run(llm: LLM, requests: list[EngineRequest], watch: Callable[[], None] = lambda: None) -> tuple[dict[str, list[int]], list[StepInput]]:
    """Each sequence's tokens, and the steps that it took."""
    steps: list[StepInput] = []
    executor = llm.engine._executor
    execute = executor.execute
    executor.execute = lambda step: (steps.append(step), execute(step))[1]  # type: ignore[method-assign]
    for request in requests:
        llm.engine.add_request(request)
    tokens: dict[str, list[int]] = {}
    while llm.engine.has_work:
        for output in llm.engine.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        llm.engine.check()
        watch()
    executor.execute = execute  # type: ignore[method-assign]
    return tokens, steps


def samples(llm: LLM, prompt: list[int], params: SamplingParams = PARAMS) -> list[EngineRequest]:
    return llm._builder.build("r", prompt, params)


def as_separate_requests(requests: list[EngineRequest]) -> list[EngineRequest]:
    return [msgspec.structs.replace(request, group_id=None) for request in requests]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 1999, 2000, 2001])
def test_eight_samples_get_the_tokens_of_eight_requests_with_their_sample_indices(
    new_llm: Callable[..., LLM], length: int, caching: bool
) -> None:
    forking = new_llm(enable_prefix_caching=caching)
    alone = new_llm(num_gpu_blocks_override=140, max_num_seqs=1)
    requests = samples(forking, prompt_of(length))
    tokens, _ = run(forking, requests)
    assert tokens == run(alone, as_separate_requests(requests))[0]
    assert len({tuple(sample) for sample in tokens.values()}) == 8


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [2048, 300])
def test_a_prompt_of_2000_tokens_is_computed_once_and_held_once(new_llm: Callable[..., LLM], caching: bool, budget: int) -> None:
    llm = new_llm(enable_prefix_caching=caching, max_num_batched_tokens=budget)
    held = []
    _, steps = run(llm, samples(llm, prompt_of(2000)), lambda: held.append(llm.engine.stats().blocks_referenced))
    computed = sum(sum(step.query_lens) for step in steps)
    # Each sample computes the prompt's last token, whose logits it needs, and all that it generates but the last.
    assert computed == 1999 + 8 * (1 + 19)
    # Of its own, each sample needs two blocks for 20 tokens, and without a cache its copy of the prompt's last block.
    assert max(held) <= 2000 // BLOCK_SIZE + (2 if caching else 3) * 8
    assert llm.engine.stats().prompt_tokens_total == 2000
    assert llm.engine.stats().blocks_referenced == 0


def test_the_partly_filled_last_block_is_shared_and_copied_by_each_that_writes_to_it(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(enable_prefix_caching=False)
    _, steps = run(llm, samples(llm, prompt_of(40), msgspec.structs.replace(PARAMS, max_tokens=3)))
    tables = {new.sample_index: new.block_ids for step in steps for new in step.new_sequences}
    assert {tuple(table[:2]) for table in tables.values()} == {tuple(tables[0][:2])}
    assert len({table[2] for table in tables.values()}) == 8
    copies = [copy for step in steps for copy in step.block_copies]
    assert copies == [(tables[0][2], tables[index][2]) for index in range(1, 8)]


def test_a_request_behind_one_for_several_samples_need_not_wait_for_their_fork(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()
    requests = samples(llm, prompt_of(100))
    behind = msgspec.structs.replace(samples(llm, prompt_of(50)[::-1], SamplingParams(max_tokens=5))[0], request_id="behind")
    _, steps = run(llm, [*requests, behind])
    assert [step.query_lens for step in steps[:2]] == [[100, 50], [1, 1] + [1] * 7]


def test_aborted_in_the_middle_all_samples_give_back_all_blocks(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(enable_prefix_caching=False)
    requests = samples(llm, prompt_of(500))
    for request in requests:
        llm.engine.add_request(request)
    for _ in range(4):
        llm.engine.step()
    assert llm.engine.stats().blocks_referenced > 31
    llm.engine.abort_requests([requests[0].request_id])  # the one that computed the prompt
    llm.engine.check()
    llm.engine.step()
    llm.engine.abort_requests([request.request_id for request in requests[1:]])
    llm.engine.check()
    stats = llm.engine.stats()
    assert (stats.blocks_referenced, stats.blocks_free, stats.num_running) == (0, stats.blocks_total, 0)


def test_more_samples_than_slots_share_with_those_that_run(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(enable_prefix_caching=False, max_num_seqs=3)
    requests = samples(llm, prompt_of(200), SamplingParams(n=8, temperature=1.0, seed=7, max_tokens=5))
    lengths = iter(range(3, 11))  # so that they end one by one, and there is always one to fork from
    requests = [msgspec.structs.replace(request, max_tokens=next(lengths)) for request in requests]
    tokens, steps = run(llm, requests)
    assert tokens == run(new_llm(), as_separate_requests(requests))[0]
    assert sum(sum(step.query_lens) for step in steps) < 200 + 8 * 11


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_samples_that_are_preempted_get_the_same_tokens(new_llm: Callable[..., LLM], caching: bool, overlap: bool) -> None:
    llm = new_llm(num_gpu_blocks_override=20, max_model_len=300, enable_prefix_caching=caching, async_scheduling=overlap)
    requests = samples(llm, prompt_of(150), SamplingParams(n=8, temperature=1.0, seed=3, max_tokens=60, ignore_eos=True))
    tokens, _ = run(llm, requests)
    assert llm.engine.stats().preemptions_total > 3
    assert tokens == run(new_llm(), as_separate_requests(requests))[0]


def test_prompt_log_probabilities_come_once_beside_forked_samples(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()
    params = msgspec.structs.replace(PARAMS, prompt_logprobs=1, n=3)
    output = llm.generate(prompt_of(40), params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 40
    plain = llm.generate(prompt_of(40), msgspec.structs.replace(params, prompt_logprobs=None), use_tqdm=False)[0]
    assert [c.token_ids for c in output.outputs] == [c.token_ids for c in plain.outputs]


# -- best_of


def test_best_of_returns_the_samples_of_the_highest_mean_log_probability_best_first(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()
    params = SamplingParams(n=6, temperature=1.0, seed=5, max_tokens=12, logprobs=0, stop_token_ids=tuple(range(3, 30)))
    everything = llm.generate(prompt_of(30), params, use_tqdm=False)[0].outputs
    means = [sum(entry.chosen.logprob for entry in c.logprobs or ()) / len(c.token_ids) for c in everything]
    assert len({len(c.token_ids) for c in everything}) > 1
    best = sorted(range(6), key=lambda index: -means[index])[:2]
    chosen = llm.generate(prompt_of(30), SamplingParams(**{**msgspec.structs.asdict(params), "n": 2, "best_of": 6}), use_tqdm=False)[0]
    assert [c.token_ids for c in chosen.outputs] == [everything[index].token_ids for index in best]
    assert [c.index for c in chosen.outputs] == [0, 1]
    assert all(c.logprobs for c in chosen.outputs)
    assert chosen.finished


def test_best_of_shows_no_log_probabilities_unless_asked(new_llm: Callable[..., LLM]) -> None:
    output = new_llm().generate(prompt_of(9), SamplingParams(best_of=3, max_tokens=4, seed=1), use_tqdm=False)[0]
    assert [(c.index, c.logprobs) for c in output.outputs] == [(0, None)]

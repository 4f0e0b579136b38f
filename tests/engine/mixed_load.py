"""Requests of many kinds, an engine whose steps are watched, and what of the outputs must not depend on the load."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from engine_settings import small_llm

from engine.llm import LLM
from engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput

Request = tuple[list[int], SamplingParams]
# One request's: token ids, log probabilities and end of each sequence, and the prompt's log probabilities.
Result = tuple[list[tuple[list[int], list[TokenLogprobs] | None, str | None]], list[TokenLogprobs | None] | None]


@dataclass
class Watch:
    """What happened in the steps of an engine."""

    num_steps: int = 0
    num_mixed_steps: int = 0  # with rows of prompts and of decodes
    num_chunks: int = 0  # parts of prompts that were not the last
    num_block_copies: int = 0
    num_swap_ins: int = 0
    num_swap_outs: int = 0

    def see(self, step: StepInput, prompt_lens: dict[int, int]) -> None:
        """`prompt_lens`: by slot."""
        prompt_lens.update({new.slot: new.num_prompt_tokens for new in step.new_sequences})
        rows = list(zip(step.slots, step.starts, step.query_lens, step.samples, strict=True))
        num_decodes = sum(query_len == 1 and start >= prompt_lens[slot] for slot, start, query_len, _ in rows)
        num_prompts = sum(start < prompt_lens[slot] for slot, start, _, _ in rows)
        self.num_steps += 1
        self.num_mixed_steps += num_decodes > 0 and num_prompts > 0
        self.num_chunks += sum(not samples and start + query_len < prompt_lens[slot] for slot, start, query_len, samples in rows)
        self.num_block_copies += len(step.block_copies)
        self.num_swap_ins += len(step.swap_ins)
        self.num_swap_outs += len(step.swap_outs)


def watched_llm(**settings: Any) -> tuple[LLM, Watch]:
    """An LLM and what its steps do, from now on."""
    llm, watch, prompt_lens = small_llm(**settings), Watch(), {}
    execute = llm.engine._executor.execute

    def execute_and_see(step: StepInput) -> Future[StepOutput]:
        watch.see(step, prompt_lens)
        return execute(step)

    llm.engine._executor.execute = execute_and_see  # type: ignore[method-assign]
    return llm, watch


def mixed_requests(num_requests: int, vocab_size: int, longest: int = 400, most_tokens: int = 110, seed: int = 0) -> list[Request]:
    """Greedy and seeded requests of 1 to `longest` tokens, of which many begin alike, and that use every stage of the sampler."""
    rng = random.Random(seed)
    stems = [[rng.randrange(3, vocab_size) for _ in range(longest // 2)] for _ in range(3)]
    requests = []
    for i in range(num_requests):
        length = (1, longest)[i] if i < 2 else rng.choice([rng.randint(1, 20), rng.randint(10, longest // 3), rng.randint(1, longest)])
        stem = rng.choice(stems)[: rng.randint(0, length - 1)] if i % 3 else []
        prompt = stem + [rng.randrange(3, vocab_size) for _ in range(length - len(stem))]
        drawn: dict[str, Any] = {"temperature": rng.choice([0.3, 0.8, 1.0, 1.7]), "seed": rng.randrange(-(2**40), 2**63)}
        drawn |= rng.choice([{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.8, "top_k": 50}])
        penalties = rng.choice([{}, {}, {"frequency_penalty": 0.7}, {"presence_penalty": -0.4}, {"repetition_penalty": 1.3}])
        masks = rng.choice([{}, {}, {}, {"logit_bias": {7: 3.0, 11: -100.0}}, {"min_tokens": 4}])
        if i % 8 == 7:  # beams are refused where all of them, at their longest, might not fit
            params = SamplingParams(use_beam_search=True, n=rng.randint(2, 4), max_tokens=rng.randint(8, 24), logprobs=0)
            requests.append((prompt[:50], params))
            continue
        params = SamplingParams(
            **({"temperature": 0.0} if rng.random() < 0.4 else drawn),
            **penalties,
            **masks,
            n=3 if i % 8 == 5 else 1,
            max_tokens=rng.randint(most_tokens // 4, most_tokens),
            logprobs=rng.choice([None, 0, 5]),
            prompt_logprobs=2 if i % 8 == 3 else None,
            ignore_eos=rng.random() < 0.5,
        )
        requests.append((prompt, params))
    return requests


def results_alone(llm: LLM, requests: list[Request]) -> list[Result]:
    """Each is sent when the one before it is done."""
    return [_result(llm.generate(prompt, params, use_tqdm=False)[0]) for prompt, params in requests]


def results_together(llm: LLM, requests: list[Request]) -> list[Result]:
    """All are sent at once."""
    outputs = llm.generate([prompt for prompt, _ in requests], [params for _, params in requests], use_tqdm=False)
    return [_result(output) for output in outputs]


def shuffle_free_blocks(llm: LLM, seed: int) -> None:
    """Have the pool hand its blocks out in a random order."""
    free = llm.engine.block_manager._free
    blocks = free.in_order()
    for block in blocks:
        free.remove(block)
    random.Random(seed).shuffle(blocks)
    for block in blocks:
        free.push_back(block)


def differing(results: list[Result], expected: list[Result]) -> list[int]:
    """The indices of the requests whose results are not the same to the bit."""
    assert len(results) == len(expected)
    return [i for i, (result, other) in enumerate(zip(results, expected, strict=True)) if result != other]


def _result(output: RequestOutput) -> Result:
    return [_sequence(completion) for completion in output.outputs], output.prompt_logprobs


def _sequence(completion: CompletionOutput) -> tuple[list[int], list[TokenLogprobs] | None, str | None]:
    return completion.token_ids, completion.logprobs, completion.finish_reason

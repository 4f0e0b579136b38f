"""The offline engine on the default model: what users of `LLM` are promised."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import torch
from engine_settings import small_llm

from engine.errors import ConfigError, InvalidRequestError, ModelLoadError
from engine.llm import LLM
from engine.outputs import RequestOutput
from engine.sampling_params import RepetitionDetection, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
TOPICS = ["the sea", "a dragon", "old books", "the moon", "bread", "a river", "winter", "music"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return small_llm()


def tokens(output: RequestOutput, index: int = 0) -> list[int]:
    return output.outputs[index].token_ids


def test_64_prompts_come_back_in_order_and_whole(llm: LLM) -> None:
    prompts = [f"Number {i}: tell me about {TOPICS[i % 8]}." for i in range(64)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.8, max_tokens=8, seed=1), use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and output.outputs[0].finish_reason in ("stop", "length") for output in outputs)
    assert all(llm.tokenizer.encode(output.prompt or "") == output.prompt_token_ids for output in outputs)
    llm.engine.check()


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 9)]
    outputs = llm.generate(["One", "Two", "Three"], params, use_tqdm=False)
    assert [len(tokens(output)) for output in outputs] == [1, 5, 9]


def test_a_chat_about_the_capital_of_france_answers_paris(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
    output = llm.chat(messages, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)[0]
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


def test_a_chat_that_must_call_a_function_calls_it(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    conversations = [[{"role": "user", "content": f"{greeting}, is it sunny?"}] for greeting in ("Hello", "Bonjour")]
    params = SamplingParams(temperature=0, max_tokens=48)
    for output in llm.chat(conversations, params, use_tqdm=False, tools=tools, tool_choice="required"):
        message = output.outputs[0].message
        assert message is not None
        assert (message.content, [call.name for call in message.tool_calls]) == ("", ["weather"])
        assert json.loads(message.tool_calls[0].arguments)["city"] in ("Paris", "Rome")
    with pytest.raises(InvalidRequestError, match="tool_choice"):
        llm.chat(conversations, params, tools=tools, tool_choice="other")


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 255])
def test_prompts_of_every_awkward_length_are_served(llm: LLM, length: int) -> None:
    prompt = [100 + i for i in range(length)]
    output = llm.generate(prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=min(8, 256 - length)), use_tqdm=False)[0]
    assert len(tokens(output)) == min(8, 256 - length)
    assert output.outputs[0].finish_reason == "length"


def test_without_max_tokens_the_output_goes_on_to_the_end_of_the_context(llm: LLM) -> None:
    output = llm.generate([5] * 200, SamplingParams(temperature=0, ignore_eos=True), use_tqdm=False)[0]
    assert len(tokens(output)) == 56


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="256 tokens") as caught:
        llm.generate([5] * 256, use_tqdm=False)
    assert caught.value.code == "context_length_exceeded"
    assert not llm.engine.has_work


def test_the_second_time_all_full_blocks_before_the_last_token_come_from_the_cache() -> None:
    llm = small_llm()
    for length in (1, 16, 17, 32, 200):
        prompt = [1000 + length + i for i in range(length)]
        first = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        second = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
        assert first.num_cached_tokens == 0
        assert second.num_cached_tokens == (length - 1) // 16 * 16
        assert tokens(first) == tokens(second)


def test_the_next_turn_of_a_conversation_finds_the_generated_tokens_in_the_cache() -> None:
    llm = small_llm()
    prompt = list(range(500, 540))
    answer = tokens(llm.generate(prompt, GREEDY, use_tqdm=False)[0])
    follow_up = llm.generate(prompt + answer + [7, 8, 9], GREEDY, use_tqdm=False)[0]
    # 40 + 24 tokens, of which the last was never computed, as nothing came after it
    assert follow_up.num_cached_tokens == 48


def test_a_request_gives_the_same_tokens_alone_in_a_crowd_in_chunks_and_preempted() -> None:
    prompts = [f"Write a long story about {topic}. " * (1 + i % 3) for i, topic in enumerate(TOPICS)]
    params = [
        SamplingParams(temperature=0.0 if i % 2 else 0.9, top_p=0.9, seed=i, max_tokens=60, ignore_eos=True, logprobs=2) for i in range(8)
    ]
    alone = small_llm(enable_prefix_caching=False)
    expected = [alone.generate(p, s, use_tqdm=False)[0].outputs[0] for p, s in zip(prompts, params, strict=True)]
    crowds = {
        "together": small_llm(),
        "in small chunks": small_llm(max_num_batched_tokens=11, max_num_seqs=8),
        "preempted all the time": small_llm(num_gpu_blocks_override=10, max_model_len=160),
        "swapped all the time": small_llm(
            num_gpu_blocks_override=10, max_model_len=160, swap_space=64 << 20, preemption_mode="swap", enable_prefix_caching=False
        ),
        "preempted with evicted blocks in host memory": small_llm(
            num_gpu_blocks_override=10, max_model_len=160, swap_space=64 << 20, preemption_mode="recompute"
        ),
    }
    for how, llm in crowds.items():
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        assert [o.token_ids for o in outputs] == [o.token_ids for o in expected], how
        assert [o.logprobs for o in outputs] == [o.logprobs for o in expected], how
        llm.engine.check()
        assert llm.engine.stats().blocks_referenced == 0
    recomputing, swapping, recomputing_from_host = [llm.engine.stats() for llm in list(crowds.values())[2:]]
    assert recomputing.preemptions_total > 4
    assert recomputing.swap_out_blocks_total == recomputing.host_blocks_total == 0
    assert swapping.preemptions_swap_total == swapping.preemptions_total > 4
    assert swapping.swap_in_blocks_total > swapping.swap_in_copies_total > 0
    assert swapping.swap_out_blocks_total >= swapping.swap_in_blocks_total
    assert recomputing_from_host.preemptions_total > 4
    assert recomputing_from_host.preemptions_swap_total == 0
    assert recomputing_from_host.swap_in_blocks_total > 0


def test_a_prompt_whose_blocks_were_evicted_comes_back_from_host_memory_with_the_same_output() -> None:
    llm = small_llm(num_gpu_blocks_override=16, swap_space=64 << 20)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
    prompts = [[1000 * (i + 1) + j for j in range(200)] for i in range(3)]
    first = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    assert llm.engine.stats().evictions_total > 0
    again = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    for before, after in zip(first, again, strict=True):
        assert (before.num_cached_tokens, after.num_cached_tokens) == (0, 192)
        assert before.outputs[0].token_ids == after.outputs[0].token_ids
        assert before.outputs[0].logprobs == after.outputs[0].logprobs
    stats = llm.engine.stats()
    assert stats.prefix_cache_hits_total == 3 * 192
    assert 0 < stats.prefix_cache_host_hits_total <= stats.prefix_cache_hits_total
    assert stats.swap_seconds_total > 0
    llm.engine.check()


def test_seeds_reproduce_and_samples_of_one_request_differ(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    first, second = (llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(2))
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in second.outputs]
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(c.token_ids) for c in first.outputs}) == 4


def test_without_a_seed_two_runs_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    first, second = (llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(2))
    assert tokens(first) != tokens(second)


def test_prompt_logprobs_agree_with_logprobs_of_the_same_tokens_generated(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("The capital of France is")
    generated = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=6, logprobs=3), use_tqdm=False)[0].outputs[0]
    whole = prompt + generated.token_ids
    scored = llm.generate(whole, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3), use_tqdm=False)[0].prompt_logprobs
    assert scored is not None
    assert generated.logprobs is not None
    assert len(scored) == len(whole)
    assert scored[0] is None
    for entry, expected in zip(scored[len(prompt) :], generated.logprobs, strict=True):
        assert entry == expected


def test_stop_strings_min_tokens_and_stop_token_ids(llm: LLM) -> None:
    text = llm.generate("Once upon a time", GREEDY, use_tqdm=False)[0].outputs[0].text
    middle = text[20:26]
    stopped = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=24, stop=(middle,)), use_tqdm=False)[0].outputs[0]
    assert stopped.text == text[: text.index(middle)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", middle)
    token_id = tokens(llm.generate("Once upon a time", GREEDY, use_tqdm=False)[0])[5]
    by_token = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=24, stop_token_ids=(token_id,)), use_tqdm=False)[0]
    assert tokens(by_token)[-1] == token_id
    assert by_token.outputs[0].stop_reason == token_id
    later = SamplingParams(temperature=0, max_tokens=24, stop_token_ids=(token_id,), min_tokens=12)
    assert len(tokens(llm.generate("Once upon a time", later, use_tqdm=False)[0])) >= 12


def test_the_cpu_kernels_give_nearly_the_reference_with_quantised_weights() -> None:
    prompt = "The three laws of thermodynamics are"
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    scores = []
    for kernels in ("cpu", "reference"):
        entries = small_llm(kernels=kernels).generate(prompt, params, use_tqdm=False)[0].prompt_logprobs
        assert entries is not None
        scores.append([entry.chosen.logprob for entry in entries if entry is not None])
    assert max(abs(a - b) for a, b in zip(*scores, strict=True)) < 0.5


def test_settings_that_cannot_work_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"holds 64 tokens.*max_model_len 256"):
        small_llm(num_gpu_blocks_override=4)
    with pytest.raises(ConfigError, match="context length of 8192"):
        LLM(max_model_len=10_000)
    with pytest.raises(ModelLoadError, match="no/such/path"):
        LLM(model="/no/such/path/model.gguf")
    with pytest.raises(ConfigError, match="no CUDA device"):
        LLM(device="cuda")
    with pytest.raises(ConfigError, match=r"no memory for steps of 100000000000 tokens.*lower --max-num-batched-tokens"):
        small_llm(max_num_batched_tokens=10**11)


def test_penalties_and_masks_give_the_same_tokens_alone_in_a_crowd_and_preempted() -> None:
    prompts = [f"Write a long story about {topic}. " for topic in TOPICS]
    kinds: list[dict[str, Any]] = [
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"logit_bias": {28: -100.0, 30: 3.0}, "frequency_penalty": 0.2},
        {"bad_words": (" the", "and"), "temperature": 0.0},
    ]
    params = [SamplingParams(**{"temperature": 0.8, **kinds[i % 4]}, seed=i, max_tokens=60, ignore_eos=True) for i in range(8)]
    alone = small_llm(enable_prefix_caching=False)
    expected = [tokens(alone.generate(p, s, use_tqdm=False)[0]) for p, s in zip(prompts, params, strict=True)]
    preempted = small_llm(num_gpu_blocks_override=10, max_model_len=160, preemption_mode="recompute")
    swapped = small_llm(num_gpu_blocks_override=10, max_model_len=160, preemption_mode="swap", swap_space=64 << 20)
    for llm in (small_llm(), preempted, swapped):
        assert [tokens(output) for output in llm.generate(prompts, params, use_tqdm=False)] == expected
        llm.engine.check()
    assert preempted.engine.stats().preemptions_total > 4
    assert swapped.engine.stats().preemptions_total > 4


def test_bad_words_are_never_generated(llm: LLM) -> None:
    before = llm.generate("Once upon a time", GREEDY, use_tqdm=False)[0].outputs[0].text
    words = tuple(sorted(before.split(), key=len)[-2:])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, bad_words=words)
    after = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].text
    assert not any(word in after for word in words)


def test_a_failing_logits_processor_ends_its_own_request_and_no_other(llm: LLM) -> None:
    def fails_at_the_fifth(generated: list[int], row: torch.Tensor) -> torch.Tensor:
        if len(generated) == 4:
            raise ValueError("five is too many")
        return row

    normal = SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True)
    failing = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logits_processors=(fails_at_the_fifth,))
    expected = llm.generate(["One", "Three"], normal, use_tqdm=False)
    outputs = llm.generate(["One", "Two", "Three"], [normal, failing, normal], use_tqdm=False)
    assert [tokens(outputs[0]), tokens(outputs[2])] == [tokens(output) for output in expected]
    failed = outputs[1].outputs[0]
    assert (failed.finish_reason, len(failed.token_ids)) == ("error", 4)
    assert failed.error is not None
    assert "five is too many" in failed.error
    llm.engine.check()
    assert llm.engine.stats().blocks_referenced == 0


def test_a_sequence_that_says_the_same_again_and_again_is_ended_when_that_is_asked_for(llm: LLM) -> None:
    loop = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, allowed_token_ids=(28, 30), logit_bias={28: 100.0})
    assert len(tokens(llm.generate("Once", loop, use_tqdm=False)[0])) == 60
    rule = RepetitionDetection(max_pattern_size=8, min_pattern_size=2, min_count=5)
    detected = msgspec.structs.replace(loop, repetition_detection=rule, min_tokens=20)
    output = llm.generate("Once", detected, use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == ([28] * 21, "repetition")
    assert output.text == llm.tokenizer.decode([28] * 21)

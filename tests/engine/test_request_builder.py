from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import InvalidRequestError
from engine.messages import EngineRequest
from engine.request_builder import RequestBuilder
from engine.sampling_params import SamplingParams


def build(
    prompt: list[int], params: SamplingParams | None = None, builder: RequestBuilder | None = None, **others: Any
) -> list[EngineRequest]:
    return (builder or RequestBuilder(max_model_len=20, vocab_size=100, seed=0)).build("id", prompt, params or SamplingParams(), **others)


@pytest.mark.parametrize(
    ("prompt", "params", "others", "param", "message"),
    [
        ([], {}, {}, "prompt", "the prompt is empty"),
        ([1, 100], {}, {}, "prompt", "token id 100 is not in the vocabulary of 100 tokens"),
        ([1, -1], {}, {}, "prompt", "token id -1 is not in the vocabulary"),
        ([1], {"logit_bias": {100: 1.0}}, {}, "logit_bias", "token id 100 is not in the vocabulary"),
        ([1], {"allowed_token_ids": (5, -1)}, {}, "allowed_token_ids", "token id -1 is not in the vocabulary"),
        ([1], {"bad_words_token_ids": ((5,), (6, 100))}, {}, "bad_words_token_ids", "token id 100 is not in the vocabulary"),
        ([1], {"bad_words": ("word",)}, {}, "bad_words", "needs a tokenizer"),
        ([1], {"stop_token_ids": (5, 100)}, {}, "stop_token_ids", "token id 100 is not in the vocabulary"),
        ([1], {}, {"priority": 2**31}, "priority", "must be an integer of 32 bits"),
        ([1] * 20, {}, {}, "prompt", "maximum context length is 20 tokens. However, your prompt has 20 tokens"),
        ([1] * 15, {"max_tokens": 6}, {}, "max_tokens", r"you requested 21 tokens \(15 in the prompt, 6 in the completion\)"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_field_at_fault(
    prompt: list[int], params: dict[str, Any], others: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refusal:
        build(prompt, SamplingParams(**params), **others)
    assert refusal.value.param == param
    assert refusal.value.code == ("context_length_exceeded" if "context" in str(refusal.value) else None)


def test_without_max_tokens_the_context_is_the_limit() -> None:
    assert build([1] * 15)[0].max_tokens == 5
    assert build([1] * 19)[0].max_tokens == 1
    assert build([1] * 15, SamplingParams(max_tokens=5))[0].max_tokens == 5


def test_each_of_n_samples_is_a_sequence_of_its_own_with_one_seed() -> None:
    requests = build([1, 2], SamplingParams(n=3, seed=-7), priority=4, cache_salt="me")
    assert [r.request_id for r in requests] == ["id#0", "id#1", "id#2"]
    assert [r.sample_index for r in requests] == [0, 1, 2]
    assert {(r.seed, r.arrival, r.priority, r.cache_salt) for r in requests} == {(-7, 1, 4, "me")}
    assert build([1])[0].request_id == "id"


def test_requests_are_numbered_in_the_order_in_which_they_come() -> None:
    builder = RequestBuilder(20, 100, 0)
    assert [build([1], builder=builder)[0].arrival for _ in range(3)] == [1, 2, 3]


def test_a_refused_request_does_not_change_the_draws_of_later_ones() -> None:
    builders = [RequestBuilder(20, 100, seed=5) for _ in range(2)]
    with pytest.raises(InvalidRequestError):
        build([], builder=builders[0])
    assert build([1], builder=builders[0]) == build([1], builder=builders[1])


def test_a_seed_is_drawn_for_those_who_bring_none_and_repeats_with_the_engines_seed() -> None:
    def seeds(engine_seed: int) -> list[int]:
        builder = RequestBuilder(20, 100, engine_seed)
        return [build([1], builder=builder)[0].seed for _ in range(4)]

    assert len(set(seeds(0) + seeds(0))) == 8
    assert seeds(3) == seeds(3) != seeds(4)


def test_prompt_log_probabilities_are_computed_for_one_sample_only() -> None:
    requests = build([1, 2], SamplingParams(n=3, prompt_logprobs=2, logprobs=1))
    assert [r.params.prompt_logprobs for r in requests] == [2, None, None]
    assert {r.params.logprobs for r in requests} == {1}


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_a_request_survives_the_wire(seed: int) -> None:
    for request in build([1, 2], SamplingParams(n=2, seed=seed, stop=("a", "é"), temperature=0.1), cache_salt="s"):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineRequest) == request


def test_a_prompt_that_fills_the_context_can_be_scored_but_not_continued() -> None:
    (request,) = build([5] * 20, SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert request.max_tokens == 1
    for params in (SamplingParams(max_tokens=1), SamplingParams(max_tokens=2, prompt_logprobs=0), SamplingParams(prompt_logprobs=0)):
        with pytest.raises(InvalidRequestError):
            build([5] * 20, params)


def test_a_refusal_does_not_repeat_all_of_a_long_value() -> None:
    with pytest.raises(InvalidRequestError, match="bad_words must not contain an empty text") as refusal:
        SamplingParams(bad_words=("", *["x" * 1000] * 200))
    assert len(str(refusal.value)) < 500

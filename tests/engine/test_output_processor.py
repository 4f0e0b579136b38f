from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loader import resolve_model
from engine.messages import EngineRequest, SequenceOutput
from engine.output_processor import OutputProcessor, merge
from engine.outputs import CompletionOutput, Logprob, RequestOutput, TokenLogprobs
from engine.request_builder import RequestBuilder
from engine.sampling_params import SamplingParams

# Loading it takes a twentieth of a second, and hypothesis wants no function-scoped fixtures.
TOKENIZER = resolve_model(None).tokenizer()
EOS = TOKENIZER.eos_token_ids[0]
PROMPT = [10, 11, 12]


def new_processor(**params: Any) -> OutputProcessor:
    settings = SamplingParams(**params)
    sequences = RequestBuilder(1000, TOKENIZER.vocab_size, 0).build("r", PROMPT, settings)
    return OutputProcessor("r", PROMPT, settings, sequences, TOKENIZER)


def output(tokens: list[int], sequence_id: str = "r", **others: Any) -> SequenceOutput:
    return SequenceOutput(request_id=sequence_id, new_token_ids=tokens, **others)


def logprob(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token_id, -float(token_id), 1), ())


def feed(processor: OutputProcessor, tokens: list[int], finish_reason: str | None = "length") -> tuple[list[CompletionOutput], list[bool]]:
    """One token at a time, as an engine that stops when told to."""
    completions, told = [], []
    for i, token_id in enumerate(tokens):
        reason = finish_reason if i == len(tokens) - 1 else None
        result, stopped = processor.process(output([token_id], finish_reason=reason))
        assert result is not None
        completions.extend(result.outputs)
        told.append(stopped)
        if processor.finished:
            break
    return completions, told


def text_of(completions: list[CompletionOutput]) -> str:
    return "".join(completion.text for completion in completions)


# -- text and stop strings


def test_the_deltas_are_the_text_and_the_last_one_says_why_it_ended() -> None:
    tokens = TOKENIZER.encode("Hello wide world, 日本!")
    completions, told = feed(new_processor(), tokens)
    assert text_of(completions) == "Hello wide world, 日本!"
    assert [token for completion in completions for token in completion.token_ids] == tokens
    assert [completion.finish_reason for completion in completions] == [None] * (len(tokens) - 1) + ["length"]
    assert not any(told)


def test_a_stop_string_over_several_tokens_ends_the_sequence_and_the_engine_is_told() -> None:
    tokens = TOKENIZER.encode("one two STOP HERE three four")
    completions, told = feed(new_processor(stop=("STOP HERE",)), tokens)
    assert text_of(completions) == "one two "
    assert (completions[-1].finish_reason, completions[-1].stop_reason) == ("stop", "STOP HERE")
    assert told == [False] * (len(told) - 1) + [True]
    assert len(told) < len(tokens)


def test_nothing_comes_out_after_a_stop_string() -> None:
    processor = new_processor(stop=("two",))
    feed(processor, TOKENIZER.encode("one two"))
    assert processor.finished
    assert processor.process(output(TOKENIZER.encode(" three"))) == (None, False)


def test_tokens_after_the_stop_string_in_one_output_are_dropped_with_their_log_probabilities() -> None:
    tokens = TOKENIZER.encode("one two three four")
    result, stopped = new_processor(stop=("two",), logprobs=0).process(output(tokens, logprobs=[logprob(t) for t in tokens]))
    assert result is not None
    assert stopped
    completion = result.outputs[0]
    assert completion.text == "one "
    assert completion.token_ids == tokens[: len(completion.token_ids)]
    assert completion.logprobs == [logprob(t) for t in completion.token_ids]
    assert TOKENIZER.decode(completion.token_ids) == "one two"


def test_the_stop_string_stays_when_asked_for() -> None:
    completions, _ = feed(new_processor(stop=("two",), include_stop_str_in_output=True), TOKENIZER.encode("one two three"))
    assert text_of(completions) == "one two"


def test_a_stop_string_completed_by_the_last_token_wins_over_the_length_and_the_engine_need_not_be_told() -> None:
    completions, told = feed(new_processor(stop=("two",)), TOKENIZER.encode("one two"))
    assert (completions[-1].finish_reason, completions[-1].stop_reason) == ("stop", "two")
    assert not told[-1]


def test_text_that_only_began_like_a_stop_string_comes_out_at_the_end() -> None:
    completions, _ = feed(new_processor(stop=("two three",)), TOKENIZER.encode("one two"))
    assert text_of(completions) == "one two"
    assert completions[-1].finish_reason == "length"


def test_stop_strings_count_only_after_min_tokens() -> None:
    tokens = TOKENIZER.encode(" two two two two")
    assert len(tokens) == 4
    completions, _ = feed(new_processor(stop=("two",), min_tokens=2), tokens)
    assert text_of(completions) == " two two "
    assert sum(len(completion.token_ids) for completion in completions) == 3


@given(
    st.text(alphabet="ab \n", min_size=1, max_size=40),
    st.lists(st.text(alphabet="ab \n", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
@settings(deadline=None)
def test_the_text_is_the_whole_text_up_to_the_first_stop_string(text: str, stops: list[str], include: bool) -> None:
    tokens = TOKENIZER.encode(text)
    completions, _ = feed(new_processor(stop=tuple(stops), include_stop_str_in_output=include), tokens)
    ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        assert text_of(completions) == text
        return
    end, negative_length = min(ends)
    assert text_of(completions) == text[: end if include else end + negative_length]
    assert completions[-1].finish_reason == "stop"


# -- tokens that end


def test_the_token_that_ends_a_sequence_is_counted_but_no_part_of_its_text() -> None:
    full_stop = TOKENIZER.encode(".")[0]
    tokens = [*TOKENIZER.encode("The end"), full_stop]
    processor = new_processor(stop_token_ids=(full_stop,))
    completions, _ = feed(processor, tokens, finish_reason="stop")
    assert text_of(completions) == "The end"
    assert completions[-1].token_ids == [full_stop]


def test_the_stop_token_is_part_of_the_text_when_asked_for() -> None:
    full_stop = TOKENIZER.encode(".")[0]
    processor = new_processor(stop_token_ids=(full_stop,), include_stop_str_in_output=True)
    completions, _ = feed(processor, [*TOKENIZER.encode("The end"), full_stop], finish_reason="stop")
    assert text_of(completions) == "The end."


def test_a_stop_token_id_is_passed_on_and_eos_has_none() -> None:
    result, stopped = new_processor().process(output([5], finish_reason="stop", stop_reason=5))
    assert result is not None
    assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason, stopped) == ("stop", 5, False)
    result, _ = new_processor().process(output([EOS], finish_reason="stop"))
    assert result is not None
    assert result.outputs[0].stop_reason is None


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    assert text_of(feed(new_processor(), [*TOKENIZER.encode("a"), EOS])[0]) == "a"
    shown = text_of(feed(new_processor(skip_special_tokens=False), [*TOKENIZER.encode("a"), EOS])[0])
    assert shown == "a" + TOKENIZER.decode([EOS])


def test_a_sequence_that_breaks_off_within_a_character_says_so() -> None:
    tokens = TOKENIZER.encode("a👩")[:-1]
    assert text_of(feed(new_processor(), tokens)[0]) == "a\ufffd"


def test_without_detokenizing_there_are_tokens_and_no_text() -> None:
    completions, _ = feed(new_processor(detokenize=False), [5, 6, 7])
    assert text_of(completions) == ""
    assert [c.token_ids for c in completions] == [[5], [6], [7]]


# -- several sequences


def test_a_request_is_finished_when_all_its_sequences_are() -> None:
    processor = new_processor(n=3)
    assert processor.unfinished_ids == ["r#0", "r#1", "r#2"]
    seen = []
    for sequence_id in ("r#1", "r#0", "r#2"):
        result, _ = processor.process(output([5], sequence_id, finish_reason="length"))
        assert result is not None
        seen.append((result.outputs[0].index, result.finished))
    assert seen == [(1, False), (0, False), (2, True)]
    assert processor.unfinished_ids == []


def test_sequences_do_not_share_text_or_stop_strings() -> None:
    processor = new_processor(n=2, stop=("two",))
    one, two = TOKENIZER.encode("one t"), TOKENIZER.encode("wo")
    assert processor.process(output(one, "r#0"))[0].outputs[0].text == "one "  # type: ignore[union-attr]
    stopped = processor.process(output(two, "r#1"))[1]
    assert not stopped
    assert processor.process(output(two, "r#0"))[1]


# -- prompt log probabilities


def test_prompt_log_probabilities_are_given_once_and_begin_with_none() -> None:
    processor = new_processor(prompt_logprobs=0)
    assert processor.process(output([], prompt_logprobs=[logprob(11)])) == (None, False)
    result, _ = processor.process(output([5], prompt_logprobs=[logprob(12)]))
    assert result is not None
    assert result.prompt_logprobs == [None, logprob(11), logprob(12)]
    result, _ = processor.process(output([6]))
    assert result is not None
    assert result.prompt_logprobs is None


def test_an_engine_that_dies_within_a_prompt_repeats_no_prompt_log_probability() -> None:
    processor = new_processor(prompt_logprobs=0)
    processor.process(output([], prompt_logprobs=[logprob(11)]))
    assert processor.resumed("r").params.prompt_logprobs == 0  # the new engine begins the prompt again
    result, _ = processor.process(output([5], prompt_logprobs=[logprob(11), logprob(12)]))
    assert result is not None
    assert result.prompt_logprobs == [None, logprob(11), logprob(12)]
    assert processor.resumed("r").params.prompt_logprobs is None  # what was given is not computed again


# -- going on in another engine


def test_a_resumed_request_has_all_tokens_so_far_and_all_that_fixes_the_next_ones() -> None:
    processor = new_processor(n=2, seed=9)
    processor.process(output([5, 6], "r#1"))
    original, resumed = new_processor(n=2, seed=9).resumed("r#1"), processor.resumed("r#1")
    assert resumed.generated_token_ids == [5, 6]
    assert original.generated_token_ids == processor.resumed("r#0").generated_token_ids == []
    unchanged = [name for name in EngineRequest.__struct_fields__ if name != "generated_token_ids"]
    assert all(getattr(resumed, name) == getattr(original, name) for name in unchanged)


def test_text_and_stop_strings_go_on_where_they_were() -> None:
    tokens = TOKENIZER.encode("one two three 👩 four STOP")
    whole, _ = feed(new_processor(stop=("STOP",)), tokens)
    for cut in range(1, len(tokens) - 1):
        processor = new_processor(stop=("STOP",))
        first, _ = feed(processor, tokens[:cut], finish_reason=None)
        rest = tokens[len(processor.resumed("r").generated_token_ids) :]
        second, _ = feed(processor, rest)
        assert text_of(first + second) == text_of(whole)
        assert second[-1].stop_reason == "STOP"


# -- merging


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=25), st.data())
@settings(deadline=None, max_examples=50)
def test_merged_outputs_are_the_sum_of_the_single_ones(arrivals: list[tuple[int, int]], data: st.DataObject) -> None:
    """`arrivals`: which of three sequences gets how many tokens."""
    processor = new_processor(n=3, logprobs=0, prompt_logprobs=0)
    results: list[RequestOutput] = []
    for index, num_tokens in arrivals:
        tokens = [1000 + 7 * (len(results) + i) for i in range(num_tokens)]
        ends = data.draw(st.booleans())
        result, _ = processor.process(
            output(
                tokens,
                f"r#{index}",
                logprobs=[logprob(t) for t in tokens],
                prompt_logprobs=[logprob(1)] if index == 0 and not any(r.prompt_logprobs for r in results) else None,
                finish_reason="length" if ends else None,
                num_cached_tokens=index,
            )
        )
        if result is not None:
            results.append(result)
    merged = copy.deepcopy(results[0])
    for result in results[1:]:
        merged = merge(merged, copy.deepcopy(result))
    by_index = {completion.index: completion for completion in merged.outputs}
    for index, completion in by_index.items():
        single = [c for result in results for c in result.outputs if c.index == index]
        assert completion.text == text_of(single)
        assert completion.token_ids == [t for c in single for t in c.token_ids]
        assert completion.logprobs == [entry for c in single for entry in c.logprobs or []]
        assert completion.finish_reason == single[-1].finish_reason
    assert set(by_index) == {c.index for result in results for c in result.outputs}
    assert merged.finished == results[-1].finished
    assert merged.num_cached_tokens == max(result.num_cached_tokens for result in results)
    given_once = [result.prompt_logprobs for result in results if result.prompt_logprobs is not None]
    assert len(given_once) <= 1
    assert merged.prompt_logprobs == (given_once[0] if given_once else None)


@pytest.mark.parametrize("wants", [False, True])
def test_log_probabilities_are_there_when_asked_for(wants: bool) -> None:
    processor = new_processor(logprobs=1 if wants else None)
    result, _ = processor.process(output([5], logprobs=[logprob(5)] if wants else None))
    assert result is not None
    assert result.outputs[0].logprobs == ([logprob(5)] if wants else None)

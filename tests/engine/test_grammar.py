"""Answers under a grammar, from the default model: what they may be, when they end, and that nothing else changes them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from engine_settings import small_llm

from engine.errors import InvalidRequestError
from engine.llm import LLM
from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuralTag, StructuredOutputs, Tag

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
COLOUR_TAG = Tag(begin="<colour>", end="</colour>", regex="red|blue")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return small_llm()


def constrained(n: int = 8, max_tokens: int = 60, **constraint: Any) -> SamplingParams:
    return SamplingParams(n=n, max_tokens=max_tokens, seed=1, structured_outputs=StructuredOutputs(**constraint))


def answers(llm: LLM, params: SamplingParams, question: str = "Describe somebody.") -> list[CompletionOutput]:
    outputs = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)[0].outputs
    assert all(output.finish_reason in ("stop", "length") for output in outputs), [output.error for output in outputs]
    return outputs


def test_an_answer_under_a_schema_is_valid_json_and_ends_with_its_last_brace(llm: LLM) -> None:
    for output in answers(llm, constrained(json=PERSON)):
        assert output.finish_reason == "stop"
        jsonschema.validate(json.loads(output.text), PERSON)


def test_a_schema_may_be_given_as_text_and_means_the_same(llm: LLM) -> None:
    as_text = answers(llm, constrained(n=1, json=json.dumps(PERSON)))
    assert as_text[0].text == answers(llm, constrained(n=1, json=PERSON))[0].text


def test_a_json_object_is_one_whenever_the_answer_is_complete(llm: LLM) -> None:
    outputs = answers(llm, constrained(json_object=True))
    assert all(output.text.startswith("{") for output in outputs)
    assert all(isinstance(json.loads(output.text), dict) for output in outputs if output.finish_reason == "stop")


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": r"\d{3}-[a-c]{2}/x"}, r"\d{3}-[a-c]{2}/x"),
        ({"choice": ("red", 'b"lue\n', "grün")}, 'red|b"lue\n|grün'),
        ({"grammar": 'start: "yes" | NO\nNO: /no+p/'}, "yes|no+p"),
        ({"grammar": 'root ::= ("a" | "b"){2,3} "c"'}, "[ab]{2,3}c"),
        ({"after": ".", "choice": ("x", "yy")}, r"(?s:[^.]*\.)\n{0,2}(x|yy)"),
        ({"structural_tag": StructuralTag(tags=(COLOUR_TAG,), free_text=False, min_tags=1, max_tags=1)}, "<colour>(red|blue)</colour>"),
        (
            {"structural_tag": StructuralTag(tags=(COLOUR_TAG,), free_text=False, min_tags=2, max_tags=2, separator=", ")},
            "(<colour>(red|blue)</colour>, ){1}<colour>(red|blue)</colour>",
        ),
    ],
)
def test_every_complete_answer_matches_the_constraint(llm: LLM, constraint: dict[str, Any], pattern: str) -> None:
    outputs = answers(llm, constrained(**constraint))
    complete = [output for output in outputs if output.finish_reason == "stop"]
    assert complete
    assert all(re.fullmatch(pattern, output.text) for output in complete)


def test_free_text_goes_on_to_a_trigger_and_from_there_on_only_the_tag_is_possible(llm: LLM) -> None:
    tags = (Tag(begin="a", end="!", regex="[0-9]{2}"), Tag(begin="ab", end="?", json={"type": "integer", "maximum": 9, "minimum": 0}))
    structure = StructuralTag(tags=tags, triggers=("a",))
    outputs = answers(llm, constrained(max_tokens=40, structural_tag=structure))
    assert all(re.fullmatch(r"([^a]*a([0-9]{2}!|b[0-9]\?))*[^a]*(a([0-9]{0,2}|b[0-9]?))?", output.text) for output in outputs)
    assert any("a" in output.text for output in outputs)


def test_a_trigger_that_names_a_special_token_is_that_token(llm: LLM) -> None:
    tag = Tag(begin="<|im_start|>", end="<|im_end|>", regex="[a-c]{2}")
    structure = StructuralTag(tags=(tag,), free_text=False, min_tags=1, max_tags=1)
    (output,) = answers(llm, constrained(n=1, structural_tag=structure))
    assert output.token_ids[0] == llm.tokenizer.token_to_id("<|im_start|>")
    assert re.fullmatch("[a-c]{2}", output.text)


def test_after_so_many_tags_free_text_cannot_open_another(llm: LLM) -> None:
    structure = StructuralTag(tags=(Tag(begin="e", end=".", regex="[0-9]"),), max_tags=1)
    assert max(output.text.count("e") for output in answers(llm, constrained(max_tokens=40, structural_tag=structure))) == 1


def test_constrained_requests_change_nothing_for_their_neighbours_nor_these_for_them(llm: LLM) -> None:
    free = SamplingParams(temperature=0.8, max_tokens=20, seed=3)
    held = constrained(n=3, json=PERSON)
    alone = [llm.generate("Once", params, use_tqdm=False)[0] for params in (free, held)]
    together = llm.generate(["Once"] * 4, [free, held, constrained(choice=("x", "y")), free], use_tqdm=False)
    assert [output.outputs for output in together[:2]] == [output.outputs for output in alone]
    assert together[3].outputs == alone[0].outputs


@pytest.mark.parametrize(
    "settings",
    [
        {"num_gpu_blocks_override": 12, "max_model_len": 160, "preemption_mode": "recompute"},
        {"num_gpu_blocks_override": 12, "max_model_len": 160, "preemption_mode": "swap", "swap_space": 64 << 20},
        {"async_scheduling": True},
    ],
)
def test_preempted_swapped_and_overlapped_sequences_generate_what_undisturbed_ones_do(llm: LLM, settings: dict[str, Any]) -> None:
    schema = {"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2}
    prompts = [f"Two persons of team {i}:" for i in range(4)]
    params = [msgspec.structs.replace(constrained(n=2, max_tokens=90, json=schema), seed=i) for i in range(4)]
    other = small_llm(**settings)
    expected = llm.generate(prompts, params, use_tqdm=False)
    assert [o.outputs for o in other.generate(prompts, params, use_tqdm=False)] == [o.outputs for o in expected]
    assert "num_gpu_blocks_override" not in settings or other.engine.stats().preemptions_total > 0
    other.engine.check()


def test_a_sequence_that_a_new_engine_takes_over_goes_on_within_its_grammar(llm: LLM) -> None:
    params = constrained(n=1, json=PERSON)
    prompt = llm.tokenizer.encode("A person:")
    whole = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
    (request,) = llm._builder.build("resumed", prompt, params)
    for known in range(1, len(whole.token_ids) - 1):
        llm.engine.add_request(msgspec.structs.replace(request, generated_token_ids=whole.token_ids[:known]))
        rest = []
        while llm.engine.has_work:
            rest += [token_id for output in llm.engine.step() for token_id in output.new_token_ids]
        assert whole.token_ids[:known] + rest == whole.token_ids


def test_a_grammar_that_fails_under_way_ends_its_own_request_alone(llm: LLM) -> None:
    # More than the parser keeps track of in a step, which shows only once it comes there.
    doubling = 'start: "go" a0\n' + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(30)) + 'a30: "x"'
    free = SamplingParams(temperature=0, max_tokens=5)
    failed, fine = llm.generate(["A", "B"], [constrained(n=1, grammar=doubling), free], use_tqdm=False)
    assert failed.outputs[0].finish_reason == "error"
    assert "grammar" in (failed.outputs[0].error or "")
    assert fine.outputs == llm.generate(["B"], free, use_tqdm=False)[0].outputs


def test_the_end_is_not_drawn_before_the_answer_is_complete_whatever_is_asked(llm: LLM) -> None:
    eos = llm.tokenizer.eos_token_ids[0]
    params = msgspec.structs.replace(constrained(n=2, max_tokens=6, regex="[ab]{4,}"), logit_bias={eos: 100.0})
    assert [len(output.text) for output in answers(llm, params)] == [4, 4]


def test_parsers_of_sampling_settings_keep_a_constraint_that_crosses_to_the_engine() -> None:
    params = constrained(structural_tag=StructuralTag(tags=(COLOUR_TAG,)), after="</think>")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (lambda: StructuredOutputs(), "structured_outputs"),
        (lambda: StructuredOutputs(regex="a", choice=("b",)), "structured_outputs"),
        (lambda: StructuredOutputs(choice=()), "structured_outputs"),
        (lambda: StructuredOutputs(json={"a": object()}), "structured_outputs"),
        (lambda: Tag(begin="x"), "structured_outputs"),
        (lambda: StructuralTag(tags=(COLOUR_TAG,), triggers=("<x>",)), "structured_outputs"),
        (lambda: msgspec.structs.replace(constrained(regex="a"), min_tokens=1), "min_tokens"),
        (lambda: msgspec.structs.replace(constrained(regex="a"), ignore_eos=True), "ignore_eos"),
        (lambda: SamplingParams(n=2, use_beam_search=True, structured_outputs=StructuredOutputs(regex="a")), "use_beam_search"),
    ],
)
def test_contradictions_are_refused_by_name(params: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        params()
    assert refusal.value.param == param

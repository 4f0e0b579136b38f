"""JSON schemas and the default model at temperature 1: what ends is valid, what cannot be enforced is refused.

`pytest -m slow -s tests/engine/test_json_schemas.py` draws 20 answers to each schema and prints how many reached max_tokens.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema
import pytest
from engine_settings import small_llm
from json_schemas import REFUSED, SCHEMAS

from engine.errors import InvalidRequestError
from engine.llm import LLM
from engine.outputs import CompletionOutput
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs

FEW = ("an order", "oneOf by a constant", "a tree", "names in other scripts", "the format date-time", "a pattern of classes", "hundredths")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return small_llm(max_model_len=320, num_gpu_blocks_override=640, max_num_seqs=32)


def answers(llm: LLM, names: list[str], samples: int, max_tokens: int) -> dict[str, list[CompletionOutput]]:
    params = [
        SamplingParams(n=samples, temperature=1.0, seed=0, max_tokens=max_tokens, structured_outputs=StructuredOutputs(json=SCHEMAS[name]))
        for name in names
    ]
    messages = [[{"role": "user", "content": f"Answer with JSON only: {name}, for example."}] for name in names]
    outputs = llm.chat(messages, params, use_tqdm=False)
    return {name: output.outputs for name, output in zip(names, outputs, strict=True)}


def exact(text: str) -> Decimal | float:
    """The number as it is written; infinity or zero for an exponent of a hundred digits, which is JSON, and more than Decimal takes."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def check(schema: dict[str, Any], outputs: list[CompletionOutput]) -> int:
    """Verify all answers that ended; returns how many did. Numbers are compared as the decimal fractions that they are."""
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator.check_schema(schema)
    checker = validator(json.loads(json.dumps(schema), parse_float=Decimal), format_checker=validator.FORMAT_CHECKER)
    ended = [output for output in outputs if output.finish_reason == "stop"]
    assert all(output.finish_reason in ("stop", "length") for output in outputs), [output.error for output in outputs]
    for output in ended:
        checker.validate(json.loads(output.text, parse_float=exact))
    return len(ended)


def test_there_are_a_hundred_schemas() -> None:
    assert len(SCHEMAS) + len(REFUSED) == 100


def test_answers_under_schemas_of_all_kinds_validate(llm: LLM) -> None:
    for name, outputs in answers(llm, [*FEW], samples=2, max_tokens=120).items():
        check(SCHEMAS[name], outputs)


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_and_the_construct_named(llm: LLM, name: str) -> None:
    schema, named = REFUSED[name]
    with pytest.raises(InvalidRequestError) as refusal:
        llm.generate("x", SamplingParams(structured_outputs=StructuredOutputs(json=schema)), use_tqdm=False)
    assert named in str(refusal.value)
    assert refusal.value.code == "unsupported_schema"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_answers_to_each_schema_validate_wherever_they_ended(llm: LLM) -> None:
    names, samples = [*SCHEMAS], 20
    ended = {}
    for start in range(0, len(names), 8):
        for name, outputs in answers(llm, names[start : start + 8], samples, max_tokens=200).items():
            ended[name] = check(SCHEMAS[name], outputs)
    total = sum(ended.values())
    print(f"\n{total} of {samples * len(names)} answers ended and are valid, {1 - total / samples / len(names):.1%} reached max_tokens")
    for name in sorted(ended, key=lambda name: ended[name]):
        if ended[name] < samples:
            print(f"  {samples - ended[name]:2} of {samples} reached max_tokens: {name}")
    assert total > 0.85 * samples * len(names)  # so small a model goes on and on with the digits of a number, or a list

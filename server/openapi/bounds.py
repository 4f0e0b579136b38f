"""Bounds of top-level parameters that are checked where they are used, not by the types of the bodies, as JSON Schema."""

from __future__ import annotations

from typing import Any

from engine.sampling_params import MAX_BAD_WORDS, MAX_LOGIT_BIASES, MAX_LOGPROBS, MAX_N
from server.limits import MAX_MESSAGES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS, MAX_TOOLS

Schema = dict[str, Any]

_LOGIT_BIAS: Schema = {
    "maxProperties": MAX_LOGIT_BIASES,
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_LOGPROBS: Schema = {"minimum": 0, "maximum": MAX_LOGPROBS}
_PENALTY: Schema = {"minimum": -2, "maximum": 2}

# By the parameter's name, then by the JSON type that is bounded.
BOUNDS: dict[str, dict[str, Schema]] = {
    "n": {"integer": {"minimum": 1, "maximum": MAX_N}},
    "best_of": {"integer": {"minimum": 1, "maximum": MAX_N}},
    "temperature": {"number": {"minimum": 0, "maximum": 100}},
    "top_p": {"number": {"exclusiveMinimum": 0, "maximum": 1}},
    "top_k": {"integer": {"minimum": -1, "exclusiveMaximum": 2**31}},
    "min_p": {"number": {"minimum": 0, "maximum": 1}},
    "presence_penalty": {"number": _PENALTY},
    "frequency_penalty": {"number": _PENALTY},
    "repetition_penalty": {"number": {"minimum": 0.01, "maximum": 100}},
    "length_penalty": {"number": {"minimum": -10, "maximum": 10}},
    "logit_bias": {"object": _LOGIT_BIAS},
    "allowed_token_ids": {"array": {"minItems": 1, "items": {"type": "integer", "minimum": 0}}},
    "bad_words": {"array": {"maxItems": MAX_BAD_WORDS}},
    "seed": {"integer": {"minimum": -(2**63), "exclusiveMaximum": 2**64}},
    "min_tokens": {"integer": {"minimum": 0}},
    "logprobs": {"integer": _LOGPROBS},
    "top_logprobs": {"integer": _LOGPROBS},
    "prompt_logprobs": {"integer": _LOGPROBS},
    "stop_sequences": {"array": {"maxItems": MAX_STOP_STRINGS}},
    "stop_token_ids": {"array": {"maxItems": MAX_STOP_TOKEN_IDS, "items": {"type": "integer", "minimum": 0}}},
    "messages": {"array": {"maxItems": MAX_MESSAGES}},
    "tools": {"array": {"maxItems": MAX_TOOLS}},
    "dimensions": {"integer": {"minimum": 1}},
    "tokens": {"array": {"items": {"type": "integer", "minimum": 0}}},
}


def bounded(name: str, schema: Schema) -> Schema:
    """The schema of a parameter, with the bounds that it has here."""
    bounds = BOUNDS.get(name)
    if bounds is None:
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [{**arm, **bounds.get(str(arm.get("type")), {})} for arm in schema["anyOf"]]}
    return {**schema, **bounds.get(str(schema.get("type")), {})}

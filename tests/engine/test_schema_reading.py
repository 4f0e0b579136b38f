"""What is done to a JSON schema before it is compiled: sizes, patterns that all languages read alike, bounds."""

from __future__ import annotations

import json
import re

import pytest

from engine.errors import InvalidRequestError
from engine.grammar.json_schema import MAX_DEPTH, read_schema
from engine.grammar.patterns import UnsupportedPatternError, portable
from engine.grammar.regex_size import regex_size


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"a\d[x-z]", 3),
        ("a{5}", 5),
        ("a{2,7}b", 8),
        ("a{3,}", 3),
        ("(ab){10}", 20),
        ("((a{9}){9}){9}", 729),
        ("[a)]{9}", 9),
    ],
)
def test_the_size_of_a_pattern_is_that_with_its_repetitions_written_out(pattern: str, size: int) -> None:
    assert regex_size(pattern) == size


def test_the_size_of_repetitions_that_multiply_stays_a_small_number_to_compute_with() -> None:
    assert regex_size("(" * 200 + "a" + "{999999999999})" * 200) >= 1 << 40


@pytest.mark.parametrize("pattern", [r"^[\w.-]+@x$", r"a/b\.c", r"[^\s]\S", "^(?:a|b)*$", r"\u0041[à-ü]", "[a-]"])
def test_a_portable_pattern_still_matches_what_the_original_does(pattern: str) -> None:
    as_python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\u{int(code[1], 16):04x}", portable(pattern))
    as_python = re.sub(r"\[(\^?)\[([^]]*)\]", r"[\1\2", as_python)  # Python has no classes within classes
    for text in ("ab.c-d@x", "a/b.c", "xy", "abab", "Aà", "a"):
        if "Alphabetic" not in as_python and re.search(as_python, text):
            assert re.search(pattern, text)


@pytest.mark.parametrize("pattern", ["(?=a)", "(?<=a)", "(?i)a", "(?<n>a)", r"\bx", r"(a)\1", "[a&&b]", "[[]", "[]", "[^]", "a{,3}", r"\A"])
def test_what_languages_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        portable(pattern)


def test_classes_of_characters_are_narrowed_and_within_negated_classes_widened() -> None:
    assert portable(r"\d") == "[0-9]"
    assert portable(r"\D") == r"[^\p{Nd}]"
    assert portable(r"[^\d]") == r"[^[\p{Nd}]]"
    assert portable(r"[^\D]") == "[^[^0-9]]"


def test_words_of_the_schema_within_its_data_are_left_alone() -> None:
    schema = {"const": {"format": "date", "pattern": "(?=a)", "type": "integer"}, "properties": {"pattern": {"enum": ["\\d"]}}}
    assert read_schema(json.dumps(schema)) == schema


def test_an_integer_without_bounds_is_one_that_all_programs_read() -> None:
    assert read_schema('{"type": "integer"}') == {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1}
    for own in ({"type": "integer", "minimum": 0, "maximum": 10**20}, {"type": "number"}, {"type": "integer", "enum": [2**70]}):
        assert read_schema(json.dumps(own)) == own


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"items":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1), "nested"),
        ('{"properties": {"a": {"x-guidance": {"lenient": true}}}}', "properties.a.x-guidance"),
        ('{"anyOf": [{}, {"minLength": 100000000}]}', "anyOf.1.minLength"),
        ('{"type": "object", "minProperties": 2}', "minProperties"),
        ('{"patternProperties": {"(?=a)": {}}}', "(?="),
    ],
)
def test_a_refusal_names_the_construct_and_its_place(text: str, named: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read_schema(text)
    assert named in str(refusal.value)

"""A constraint as a grammar in llguidance's dialect of Lark (its docs/syntax.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engine.errors import InvalidRequestError
from engine.grammar.json_schema import read_schema
from engine.grammar.regex_size import MAX_REGEX_SIZE, regex_size
from engine.structured_outputs import MAX_GRAMMAR_LENGTH, StructuralTag, StructuredOutputs, Tag

SpecialTokens = Callable[[str], int | None]  # the id of the special token of this name, if there is one

# Spaces are those of json.dumps or none. Free whitespace between tokens, which JSON allows, has no end, and small models do not find one.
_INLINE_SCHEMA = re.compile(r"%json\s+(?=\S)|%json(?=\{)")
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": False,
    "lenient": False,
}


def as_grammar(settings: StructuredOutputs, special_token: SpecialTokens) -> str:
    """The grammar, or several as JSON, as LLMatcher takes it. Raises InvalidRequestError for GBNF that cannot be translated."""
    grammar = _Grammar(special_token)
    if settings.after is None and settings.grammar is not None:
        return _lark(settings.grammar)
    return grammar.text(settings)


class _Grammar:
    """Collects rules, and grammars beside them that they refer to."""

    def __init__(self, special_token: SpecialTokens) -> None:
        self._special_token = special_token
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []

    def text(self, settings: StructuredOutputs) -> str:
        body = self._structural_tag(settings.structural_tag) if settings.structural_tag is not None else self._body(settings)
        if settings.after is not None:
            # Models put up to two line breaks behind their thoughts.
            body = f"{self._text_up_to('after', settings.after, [settings.after])} /\\n{{0,2}}/ {body}"
        lark = "\n".join([f"start: {body}", *self._rules])
        if not self._others:
            return lark
        return json.dumps({"grammars": [{"name": "outer", "lark_grammar": lark}, *self._others]})

    def _body(self, constraint: Tag | StructuredOutputs) -> str:
        """What the constraint describes, as it stands within a rule."""
        if constraint.json is not None:
            return f"%json {_with_options(read_schema(str(constraint.json)))}"
        if constraint.regex is not None:
            _check_size(constraint.regex, MAX_REGEX_SIZE, "regex")
            return f"/{regex_to_lark(constraint.regex, use_ascii='d')}/"
        if constraint.grammar is not None:
            name = f"grammar_{len(self._others)}"
            self._others.append({"name": name, "lark_grammar": _lark(constraint.grammar)})
            return f"@{name}"
        assert isinstance(constraint, StructuredOutputs)
        if constraint.choice is not None:
            # One terminal: alternatives of a rule are looked at one by one at each token.
            self._rules.append("CHOICE: " + " | ".join(map(_quoted, dict.fromkeys(constraint.choice))))
            return "CHOICE"
        return f"%json {_with_options({'type': 'object'})}"

    def _structural_tag(self, structure: StructuralTag) -> str:
        triggers = sorted(dict.fromkeys(structure.triggers or [tag.begin for tag in structure.tags]), key=len, reverse=True)
        bodies: dict[str, list[str]] = {}
        for tag in structure.tags:
            trigger = next(trigger for trigger in triggers if tag.begin.startswith(trigger))
            rest = tag.begin[len(trigger) :]
            bodies.setdefault(trigger, []).append(" ".join([*self._literal(rest), self._body(tag), *self._literal(tag.end)]))
        segments = []
        for i, (trigger, alternatives) in enumerate(bodies.items()):
            if structure.free_text:
                opening = self._text_up_to(f"trigger_{i}", trigger, triggers)
            else:
                opening = " ".join(self._literal(trigger))
            self._rules.append(f"tag_{i}: {opening} ({' | '.join(alternatives)})")
            segments.append(f"tag_{i}")
        self._rules.append(f"tag: {' | '.join(segments)}")
        if structure.free_text:
            return f"{_repeated('tag', structure.min_tags, structure.max_tags)} {self._free_text(triggers)}"
        most = None if structure.max_tags is None else structure.max_tags - 1
        more = _repeated(f"({' '.join([*self._literal(structure.separator), 'tag'])})", max(0, structure.min_tags - 1), most)
        if structure.otherwise is not None:
            return f"(tag {more} | {self._body(structure.otherwise)})"
        return f"tag {more}" if structure.min_tags else f"(tag {more})?"

    def _text_up_to(self, name: str, marker: str, excluded: list[str]) -> str:
        """Free text that ends with the first `marker`, and holds none of the excluded ones before."""
        token_id = self._special_token(marker)
        if token_id is not None:
            return f"{self._free_text(excluded)} <[{token_id}]>"
        # Lazy: the lexeme ends as soon as it matches.
        self._rules.append(f"{name}[lazy]: /(?s:.*)/ {_quoted(marker)}")
        return name

    def _free_text(self, excluded: list[str]) -> str:
        """Text without any of these. A special token is no text, and need not be excluded."""
        texts = [marker for marker in excluded if self._special_token(marker) is None]
        name = f"TEXT_{len(self._rules)}"
        without = "".join(f" & ~/(?s:.*){_as_regex(text)}(?s:.*)/" for text in texts)
        self._rules.append(f"{name}: /(?s:.*)/{without}")
        return name

    def _literal(self, text: str) -> list[str]:
        """Exactly this text, or this special token; nothing for an empty text."""
        if not text:
            return []
        token_id = self._special_token(text)
        return [_quoted(text) if token_id is None else f"<[{token_id}]>"]


def _lark(grammar: str) -> str:
    """A caller's grammar, the JSON schemas within it checked."""
    try:
        lark = str(any_to_lark(grammar))
    except Exception as error:  # the library raises bare Exceptions
        raise _refusal(f"it is neither Lark nor GBNF: {error}") from error
    _check_size(lark, MAX_GRAMMAR_LENGTH + MAX_REGEX_SIZE, "grammar")
    start = 0
    while (found := _INLINE_SCHEMA.search(lark, start)) is not None:
        try:
            _, start = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError) as error:
            raise _refusal(f"what follows %json is not valid JSON: {error}") from error
        schema = _with_options(read_schema(lark[found.end() : start]))
        lark, start = lark[: found.end()] + schema + lark[start:], found.end() + len(schema)
    return lark


def _with_options(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS})


def _check_size(pattern: str, most: int, name: str) -> None:
    size = regex_size(pattern)
    if size > most:
        raise _refusal(f"the {name} is too large: with all repetitions written out it has {size} characters, but {most} at most are taken")


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the grammar cannot be enforced: {reason}", "structured_outputs", "invalid_grammar")


def _repeated(rule: str, least: int, most: int | None) -> str:
    return "" if most == 0 else f"{rule}{{{least},{'' if most is None else most}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_regex(text: str) -> str:
    """A regular expression that matches this text, as it stands between slashes."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)

"""What an answer is constrained to: a JSON schema, a regular expression, one of several texts, a grammar, or tags within free text."""

from __future__ import annotations

import json as json_module
from typing import Any

import msgspec

from engine.errors import InvalidRequestError

MAX_GRAMMAR_LENGTH = 64 << 10  # characters of a Lark or GBNF grammar
MAX_REGEX_LENGTH = 8 << 10
MAX_CHOICES = 10_000
MAX_TAGS = 512
MAX_MARKER_LENGTH = 1024  # characters of a tag's begin or end, of a trigger, of `after`

_BODIES = ("json", "regex", "grammar")
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class Tag(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A constrained piece of a text: `begin`, then what one of json, regex and grammar describes, then `end`."""

    begin: str  # starts with one of the triggers
    end: str = ""
    json: str | dict[str, Any] | None = None  # a JSON schema; kept as text
    regex: str | None = None
    grammar: str | None = None  # Lark, with a rule `start`

    def __post_init__(self) -> None:
        """Raises InvalidRequestError unless there is exactly one body."""
        _keep_as_text(self)
        given = [name for name in _BODIES if getattr(self, name) is not None]
        _check(len(given) == 1, f"a tag has exactly one of {', '.join(_BODIES)}, but this one has {' and '.join(given) or 'none'}")
        _check(bool(self.begin), "a tag's begin must not be empty")


class StructuralTag(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Free text until a trigger, from there on one of the tags that begin with it, then free text again.

    A trigger or an end that is the name of a special token of the model stands for that token.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] = ()  # such as "<tool_call>"; none: each tag's own begin
    free_text: bool = True  # whether anything may stand around the tags; if not, the answer is tags and `separator`s alone
    min_tags: int = 0
    max_tags: int | None = None  # None: any number
    separator: str = ""  # between two tags without free text
    otherwise: StructuredOutputs | None = None  # without free text: what the answer may be in the place of tags

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for tags that no trigger would ever begin."""
        _check(0 < len(self.tags) <= MAX_TAGS, f"a structural tag has 1 to {MAX_TAGS} tags, but this one has {len(self.tags)}")
        _check(all(self.triggers), "a trigger must not be empty")
        for tag in self.tags:
            starts = not self.triggers or any(tag.begin.startswith(trigger) for trigger in self.triggers)
            _check(starts, f"the tag that begins with {tag.begin[:100]!r} starts with none of the triggers")
        most = MAX_TAGS if self.max_tags is None else self.max_tags
        _check(1 <= most <= MAX_TAGS, f"max_tags must be between 1 and {MAX_TAGS}, but is {most}")
        _check(self.otherwise is None or not self.free_text, "what an answer is otherwise can only be said where there is no free text")
        _check(0 <= self.min_tags <= most, f"min_tags must be between 0 and {most}, but is {self.min_tags}")
        markers = [self.separator, *self.triggers, *(text for tag in self.tags for text in (tag.begin, tag.end))]
        _check(max(map(len, markers)) <= MAX_MARKER_LENGTH, f"a tag's begin and end have at most {MAX_MARKER_LENGTH} characters")


class StructuredOutputs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A constraint on the answer: exactly one of json, json_object, regex, choice, grammar and structural_tag.

    The answer ends as soon as nothing can follow, and only where it is complete; an answer that reaches max_tokens first is a beginning
    of a valid one.
    """

    json: str | dict[str, Any] | None = None  # a JSON schema; kept as text
    json_object: bool = False  # any JSON object
    regex: str | None = None  # Rust's syntax, the whole answer
    choice: tuple[str, ...] | None = None
    grammar: str | None = None  # Lark, with a rule `start`; or GBNF, with a rule `root`
    structural_tag: StructuralTag | None = None
    after: str | None = None  # all this holds from behind the first such text on, "</think>" say; what comes before it is free

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for none or several constraints, and for ones that are too long to be looked at."""
        _keep_as_text(self)
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        _check(len(given) == 1, f"a constraint is exactly one of {', '.join(_KINDS)}, but this has {' and '.join(given) or 'none'}")
        if self.choice is not None:
            _check(0 < len(self.choice) <= MAX_CHOICES, f"choice must hold 1 to {MAX_CHOICES} texts, but holds {len(self.choice)}")
            _check(all(self.choice), "choice must not hold an empty text")
            length = sum(map(len, self.choice))
            _check(length <= MAX_GRAMMAR_LENGTH, f"choice must hold at most {MAX_GRAMMAR_LENGTH} characters, but holds {length}")
        _check(self.after is None or 0 < len(self.after) <= MAX_MARKER_LENGTH, f"after must have 1 to {MAX_MARKER_LENGTH} characters")


def _keep_as_text(constraint: Tag | StructuredOutputs) -> None:
    """The schema as text: integers of any size keep their digits on the way to the engine, and equal text is an equal grammar."""
    for name, most in (("regex", MAX_REGEX_LENGTH), ("grammar", MAX_GRAMMAR_LENGTH)):
        text = getattr(constraint, name)
        _check(text is None or len(text) <= most, f"{name} must have at most {most} characters, but has {len(text or '')}")
    if isinstance(constraint.json, dict):
        try:
            text = json_module.dumps(constraint.json, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the JSON schema is no JSON: {error}", "structured_outputs", "unsupported_schema") from error
        msgspec.structs.force_setattr(constraint, "json", text)


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise InvalidRequestError(rule, param="structured_outputs")

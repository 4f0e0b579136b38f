"""The four forms in which OpenAI takes texts: a string, several, token ids, several lists of them."""

from __future__ import annotations

from typing import Any, TypeAlias

Prompt: TypeAlias = str | list[int]
PromptForms: TypeAlias = str | list[str] | list[int] | list[list[int]]


def as_prompts(value: Any, most: int) -> list[Prompt]:
    """The texts of a request, at most `most`. Raises ValueError for anything else; one verdict on the whole, which may be long."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    if _are_ids(value):
        return [value]
    if len(value) > most:
        raise ValueError(f"must hold at most {most} prompts")
    if all(isinstance(item, str) for item in value) or all(isinstance(item, list) and item and _are_ids(item) for item in value):
        return value
    raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists, none of them empty")


def _are_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)

"""How one answer is to be generated and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.chat.deltas import MessageParser, PlainText
from engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class AnswerWishes:
    """What a request wishes of its answer beside the tools."""

    begins_message: bool = True  # the prompt ends where a message begins, and not within one
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # what the prompt was rendered with
    wants_no_reasoning: bool = False
    thinking_token_budget: int | None = None  # tokens of reasoning; None: no bound
    shows_reasoning: bool = True


@dataclass(frozen=True)
class AnswerPlan:
    """The settings under which the engine generates an answer, and what makes the parser of each sample."""

    params: SamplingParams
    new_parser: Callable[[], MessageParser] = PlainText

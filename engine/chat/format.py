"""How one model speaks: its template, its reasoning, its tool calls. Prompts are made by it, and answers read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from engine.chat.deltas import MessageParser
from engine.chat.message_style import MessageStyle
from engine.chat.parser import RichText
from engine.chat.plan import AnswerPlan, AnswerWishes
from engine.chat_template import ChatTemplate
from engine.errors import ConfigError, InvalidRequestError
from engine.reasoning.budget import ThinkingBudget
from engine.reasoning.formats import FORMATS as REASONING_FORMATS
from engine.reasoning.formats import ReasoningFormat
from engine.reasoning.formats import find_format as find_reasoning_format
from engine.reasoning.parser import ReasoningParser
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs
from engine.tokenizer import Tokenizer
from engine.tool_calls.formats import FORMATS as TOOL_FORMATS
from engine.tool_calls.formats import find_format as find_tool_format
from engine.tool_calls.structure import Spelling
from engine.tool_calls.tools import ToolUse

# What templates call the switch that turns reasoning on and off.
_THINKING_SWITCHES = ("enable_thinking", "thinking")


class ChatFormat:
    """One model's format. Thread-safe. Raises ConfigError for a template that is not valid, and for unknown parsers."""

    def __init__(self, template: str, tokenizer: Tokenizer, tool_parser: str = "auto", reasoning_parser: str = "auto") -> None:
        """Parsers: names of tool_calls.FORMATS and reasoning.FORMATS; auto: what the template shows; none: everything is content."""
        self.template = ChatTemplate(template, tokenizer.bos_token, tokenizer.eos_token)
        self._style = MessageStyle.of(template)
        self.tool_format = find_tool_format(template) if tool_parser == "auto" else _known(tool_parser, TOOL_FORMATS, "tool_call_parser")
        self.reasoning: ReasoningFormat | None = None
        if reasoning_parser == "auto":
            self.reasoning = find_reasoning_format(template)
        elif reasoning_parser != "none":
            self.reasoning = REASONING_FORMATS[_known(reasoning_parser, REASONING_FORMATS, "reasoning_parser")]
        self._tokenizer = tokenizer
        self._can_switch = any(self.template.mentions(name) for name in _THINKING_SWITCHES)
        self._opens_reasoning = self.reasoning is not None and self._opens()
        self._spelling = Spelling(template, self._special_token)

    def render(
        self,
        messages: list[dict[str, Any]],
        use: ToolUse | None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: dict[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises InvalidRequestError with the template's own words when it cannot render the messages."""
        messages, tools = self._style.prepared(messages, use, self._call_text)
        return self.template.render(messages, add_generation_prompt, continue_final_message, {**(variables or {}), "tools": tools})

    def variables_of(self, reasoning_effort: str) -> dict[str, Any]:
        """What templates are told of a reasoning effort; they heed those of the variables that they know.

        Raises InvalidRequestError when the model does not reason, and is asked to.
        """
        if reasoning_effort == "none":
            return dict.fromkeys(_THINKING_SWITCHES, False)
        if self.reasoning is None and not self.template.mentions("reasoning_effort"):
            message = "reasoning_effort is not supported here: the model does not reason apart from its answer"
            raise InvalidRequestError(message, param="reasoning_effort", code="unsupported_parameter")
        return {**dict.fromkeys(_THINKING_SWITCHES, True), "reasoning_effort": reasoning_effort}

    def plan(self, prompt: str, use: ToolUse | None, params: SamplingParams, wishes: AnswerWishes) -> AnswerPlan:
        """How the answer to a prompt's text is generated and read.

        Raises InvalidRequestError for a thinking budget that the model has no use for, and for functions that cannot be enforced.
        """
        if use is not None and (self._style.knows_one_call or (use.required and not self._style.knows_tools)):
            use = dataclasses.replace(use, only_one=True)  # a model that was not trained to call does not know when to stop
        reasoning = self.reasoning if wishes.begins_message else None
        budget = wishes.thinking_token_budget
        if wishes.wants_no_reasoning and self.reasoning is not None and not self._can_switch:
            budget = 0  # the template cannot turn it off
        if budget is not None and self.reasoning is None:
            message = "thinking_token_budget is not supported here: the model does not reason apart from its answer"
            raise InvalidRequestError(message, param="thinking_token_budget", code="unsupported_parameter")
        if reasoning is None and use is None:
            return AnswerPlan(params)
        is_open = reasoning is not None and reasoning.is_open(prompt)
        constraint = self._with_calls(params.structured_outputs, use)
        if constraint is not None and reasoning is not None and constraint.after is None and self._thinks_first(prompt, reasoning, wishes):
            constraint = msgspec.structs.replace(constraint, after=reasoning.ends[0])
        params = msgspec.structs.replace(
            params,
            structured_outputs=constraint,
            visible_token_ids=self._visible_token_ids(use, reasoning),
            thinking=None if budget is None or reasoning is None else self._thinking_budget(budget, reasoning, is_open),
        )
        return AnswerPlan(params, self._parser_maker(use, reasoning, is_open, wishes.shows_reasoning))

    def _with_calls(self, constraint: StructuredOutputs | None, use: ToolUse | None) -> StructuredOutputs | None:
        """The constraint on an answer that may call tools in its place."""
        if use is None or not (use.is_constrained or constraint is not None):
            return constraint
        calls = TOOL_FORMATS[self.tool_format].structure(use, self._spelling)
        if use.required or constraint is None:
            return StructuredOutputs(structural_tag=calls)
        if constraint.structural_tag is not None:
            return constraint  # whoever says where tags stand means these alone
        calls = msgspec.structs.replace(calls, free_text=False, otherwise=msgspec.structs.replace(constraint, after=None))
        return StructuredOutputs(structural_tag=calls, after=constraint.after)

    def _parser_maker(
        self, use: ToolUse | None, reasoning: ReasoningFormat | None, is_open: bool, shows_reasoning: bool
    ) -> Callable[[], MessageParser]:
        tools = TOOL_FORMATS[self.tool_format]
        end_token_id = None if reasoning is None else self._tokenizer.token_to_id(reasoning.ends[0])

        def new_parser() -> MessageParser:
            return RichText(
                None if reasoning is None else ReasoningParser(reasoning, is_open, end_token_id),
                None if use is None else tools(use.names, use.only_one),
                shows_reasoning,
            )

        return new_parser

    def _thinks_first(self, prompt: str, reasoning: ReasoningFormat, wishes: AnswerWishes) -> bool:
        """Whether the answer to a prompt is sure to begin with reasoning: the prompt has begun it, or leaves that to the model."""
        if reasoning.is_open(prompt):
            return True
        if reasoning.is_closed(prompt) or self._opens_reasoning:
            return False
        # Qwen's switch is on by default, and the others are off.
        switches = [name for name in _THINKING_SWITCHES if self.template.mentions(name)]
        return any(wishes.template_variables.get(name, name == "enable_thinking") for name in switches)

    def _call_text(self, calls: list[tuple[str, str]]) -> str:
        return TOOL_FORMATS[self.tool_format].call_text(calls, self._spelling)

    def _opens(self) -> bool:
        """Whether the template begins reasoning itself, where it is wanted."""
        try:
            text = self.template.render([{"role": "user", "content": "?"}], True, False, dict.fromkeys(_THINKING_SWITCHES, True))
        except InvalidRequestError:
            return False
        return self.reasoning is not None and text.rstrip().endswith(self.reasoning.begins)

    def _thinking_budget(self, num_tokens: int, reasoning: ReasoningFormat, is_open: bool) -> ThinkingBudget:
        begins, ends = (tuple(self._tokenizer.encode(one[0], add_special_tokens=False)) for one in (reasoning.begins, reasoning.ends))
        return ThinkingBudget(max_tokens=num_tokens, begin_token_ids=begins, end_token_ids=ends, is_open=is_open)

    def _visible_token_ids(self, use: ToolUse | None, reasoning: ReasoningFormat | None) -> tuple[int, ...]:
        """The special tokens that must be seen in an answer, though others are skipped."""
        markers = () if use is None else TOOL_FORMATS[self.tool_format].markers
        if reasoning is not None:
            markers = (*markers, *reasoning.begins, *reasoning.ends)
        token_ids = [self._special_token(marker) for marker in markers]
        return tuple(token_id for token_id in token_ids if token_id is not None)

    def _special_token(self, name: str) -> int | None:
        token_id = self._tokenizer.token_to_id(name)
        return token_id if token_id is not None and self._tokenizer.is_special(token_id) else None


def _known(name: str, formats: dict[str, Any], setting: str) -> str:
    if name not in formats:
        raise ConfigError(f"{setting} must be auto or one of {', '.join(formats)}, but is {name!r}")
    return name

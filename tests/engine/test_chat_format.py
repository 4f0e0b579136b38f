"""How a model speaks is taken from its template: prompts with tools, and the plan of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from engine.chat.format import ChatFormat
from engine.chat.message import read_message
from engine.chat.plan import AnswerWishes
from engine.errors import ConfigError, InvalidRequestError
from engine.loader.resolve import resolve_model
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs
from engine.tokenizer import Tokenizer
from engine.tool_calls.tools import Tool, ToolUse, read_tools

PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
QWEN = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% endif %}"
)
# It shows no tools, joins content and arguments to text, and begins reasoning itself where it is wanted.
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' or m.role == 'user' %}[{{ m.role }}]{{ m.content }}"
    "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}"
    "{% elif m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "{% if m['content'] is none %}{{ '<｜tool▁call▁begin｜>' }}{% else %}{{ m['content'] + '<｜tool▁call▁begin｜>' }}{% endif %}"
    "{{ c['function']['name'] + c['function']['arguments'] }}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role == 'user' %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
LLAMA = '{% if not message.tool_calls|length == 1 %}{% endif %}{{ tools }} ipython {{ messages[0].content }} "parameters"'
MISTRAL = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('9!') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function | tojson }}{{ c.id }}{% endfor %}{% if m.role == 'tool' %}{{ m.tool_call_id }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endif %}{% endfor %}"
)
TIME = Tool("time", "The time in a zone", {"type": "object", "properties": {"zone": {"type": "string"}}})
ASKING: list[dict[str, Any]] = [{"role": "user", "content": "What time is it?"}]
CALLED: list[dict[str, Any]] = [
    *ASKING,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "time", "arguments": '{"zone": "UTC"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Noon"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    plain = resolve_model(None).tokenizer()
    backend = tokenizers.Tokenizer.from_str(plain.backend.to_str())
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in ("<think>", "</think>")])
    return Tokenizer(backend, {"eos_token": plain.eos_token})


class TestPrompts:
    def test_a_template_that_knows_tools_is_given_them(self, tokenizer: Tokenizer) -> None:
        text = ChatFormat(QWEN, tokenizer).render(ASKING, ToolUse((TIME,)))
        assert text.startswith(json.dumps(TIME.shown()))

    def test_arguments_are_objects_for_templates_that_print_them_as_json(self, tokenizer: Tokenizer) -> None:
        assert '<tool_call>time{"zone": "UTC"}</tool_call>' in ChatFormat(QWEN, tokenizer).render(CALLED, None)

    def test_arguments_are_text_for_templates_that_print_them_as_they_are(self, tokenizer: Tokenizer) -> None:
        assert '<｜tool▁call▁begin｜>time{"zone": "UTC"}' in ChatFormat(DEEPSEEK, tokenizer).render(CALLED, None)
        as_object = json.loads(json.dumps(CALLED))
        as_object[1]["tool_calls"][0]["function"]["arguments"] = {"zone": "UTC"}
        assert '<｜tool▁call▁begin｜>time{"zone": "UTC"}' in ChatFormat(DEEPSEEK, tokenizer).render(as_object, None)

    def test_a_family_whose_template_shows_no_tools_is_taught_its_own_form_and_keeps_its_own_messages(self, tokenizer: Tokenizer) -> None:
        text = ChatFormat(DEEPSEEK, tokenizer).render(CALLED, ToolUse((TIME,)))
        example = (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><function-name><｜tool▁sep｜><arguments><｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        )
        assert example in text
        assert text.endswith("<｜tool▁output▁begin｜>Noon")

    def test_ids_of_other_servers_are_made_what_mistrals_templates_demand(self, tokenizer: Tokenizer) -> None:
        text = ChatFormat(MISTRAL, tokenizer).render(CALLED, None)
        id = text[-9:]
        assert id.isalnum()
        assert text.count(id) == 2

    def test_a_template_that_looks_for_tools_in_the_system_message_finds_them_and_calls_in_their_text(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(PHI, tokenizer)
        assert format.tool_format == "phi4_mini"
        text = format.render(CALLED, ToolUse((TIME,)))
        assert text.startswith(f"<|system|><|tool|>[{json.dumps(TIME.shown()['function'])}]<|/tool|>")
        assert '<|assistant|><|tool_call|>[{"name": "time", "arguments": {"zone": "UTC"}}]<|/tool_call|>' in text
        with_system = format.render([{"role": "system", "content": "Be brief."}, *ASKING], ToolUse((TIME,)))
        assert with_system.startswith("<|system|>Be brief.<|tool|>")
        assert with_system.count("<|system|>") == 1

    def test_a_template_that_knows_none_has_tools_calls_and_results_in_its_text(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(PLAIN, tokenizer)
        text = format.render(CALLED, ToolUse((TIME,)))
        assert text.startswith("[system]")
        assert json.dumps(TIME.shown()["function"]) in text
        assert '[assistant]<tool_call>\n{"name": "time", "arguments": {"zone": "UTC"}}\n</tool_call>' in text
        assert text.endswith("[user]<tool_response>\nNoon\n</tool_response>[assistant]")
        with_system = format.render([{"role": "system", "content": "Be brief."}, *ASKING], ToolUse((TIME,)))
        assert with_system.startswith("[system]Be brief.\n\n")
        assert with_system.count("[system]") == 1

    def test_a_conversation_without_tools_is_rendered_as_ever(self, tokenizer: Tokenizer) -> None:
        assert ChatFormat(PLAIN, tokenizer).render(ASKING, None) == "[user]What time is it?[assistant]"


class TestPlans:
    def test_an_answer_without_tools_or_reasoning_is_plain(self, tokenizer: Tokenizer) -> None:
        params = SamplingParams()
        plan = ChatFormat(PLAIN, tokenizer).plan("[assistant]", None, params, AnswerWishes())
        assert plan.params is params
        assert read_message(plan.new_parser(), "<tool_call>", [1]).content == "<tool_call>"

    def test_markers_that_are_special_tokens_are_seen(self, tokenizer: Tokenizer) -> None:
        plan = ChatFormat(QWEN, tokenizer).plan("[assistant]", None, SamplingParams(), AnswerWishes())
        names = {tokenizer.id_to_token(token_id) for token_id in plan.params.visible_token_ids}
        assert names == {"<think>", "</think>"}

    def test_calls_are_free_under_auto_and_under_a_grammar_where_they_must_be_valid(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(QWEN, tokenizer, reasoning_parser="none")

        def constraint(use: ToolUse) -> StructuredOutputs | None:
            return format.plan("[assistant]", use, SamplingParams(), AnswerWishes()).params.structured_outputs

        assert constraint(ToolUse((TIME,))) is None
        assert constraint(ToolUse((TIME,), required=True)) is not None
        assert constraint(ToolUse((Tool("time", strict=True),))) is not None
        assert constraint(ToolUse((TIME,), restricted=True)) is not None

    def test_a_constraint_holds_after_reasoning_unless_it_is_turned_off(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(QWEN, tokenizer)
        params = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))
        thinking = format.render(ASKING, None, variables=format.variables_of("high"))
        silent = format.render(ASKING, None, variables=format.variables_of("none"))
        for text, after in ((thinking, "</think>"), (silent, None)):
            constraint = format.plan(text, None, params, AnswerWishes()).params.structured_outputs
            assert constraint is not None
            assert constraint.after == after

    def test_a_template_that_begins_reasoning_itself_says_whether_there_is_any(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(DEEPSEEK, tokenizer)
        params = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))
        for messages, effort, after in ((ASKING, "high", "</think>"), (ASKING, "none", None), (CALLED, "high", None)):
            variables = format.variables_of(effort)
            text = format.render(messages, None, variables=variables)
            constraint = format.plan(text, None, params, AnswerWishes(template_variables=variables)).params.structured_outputs
            assert constraint is not None
            assert constraint.after == after

    def test_a_model_whose_template_refuses_several_calls_makes_one(self, tokenizer: Tokenizer) -> None:
        plan = ChatFormat(LLAMA, tokenizer).plan("", ToolUse((TIME,)), SamplingParams(), AnswerWishes())
        call = '{"name": "time", "parameters": {}}'
        assert len(read_message(plan.new_parser(), f"{call}; {call}", []).tool_calls) == 1

    def test_a_model_that_was_not_trained_to_call_must_call_once(self, tokenizer: Tokenizer) -> None:
        plan = ChatFormat(PLAIN, tokenizer).plan("", ToolUse((TIME,), required=True), SamplingParams(), AnswerWishes())
        assert plan.params.structured_outputs is not None
        assert plan.params.structured_outputs.structural_tag is not None
        assert plan.params.structured_outputs.structural_tag.max_tags == 1

    def test_reasoning_that_the_template_cannot_turn_off_is_ended_at_once(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat("{{ '<think>' }}{{ '</think>' }}", tokenizer)
        thinking = format.plan("<think>", None, SamplingParams(), AnswerWishes(wants_no_reasoning=True)).params.thinking
        assert thinking is not None
        assert thinking.max_tokens == 0

    def test_a_thinking_budget_becomes_the_tokens_that_end_it(self, tokenizer: Tokenizer) -> None:
        thinking = (
            ChatFormat(QWEN, tokenizer)
            .plan("[assistant]<think>", None, SamplingParams(), AnswerWishes(thinking_token_budget=5))
            .params.thinking
        )
        assert thinking is not None
        assert (thinking.max_tokens, thinking.is_open) == (5, True)
        assert thinking.end_token_ids == (tokenizer.token_to_id("</think>"),)

    def test_a_model_that_does_not_reason_refuses_to_be_told_how_much(self, tokenizer: Tokenizer) -> None:
        format = ChatFormat(PLAIN, tokenizer)
        with pytest.raises(InvalidRequestError, match="does not reason") as refusal:
            format.variables_of("low")
        assert refusal.value.code == "unsupported_parameter"
        with pytest.raises(InvalidRequestError, match="does not reason"):
            format.plan("", None, SamplingParams(), AnswerWishes(thinking_token_budget=5))
        assert format.variables_of("none")["enable_thinking"] is False


def test_parsers_can_be_named_and_must_exist(tokenizer: Tokenizer) -> None:
    assert ChatFormat(PLAIN, tokenizer, tool_parser="mistral").tool_format == "mistral"
    assert ChatFormat(PLAIN, tokenizer, reasoning_parser="deepseek_r1").reasoning is not None
    with pytest.raises(ConfigError, match="tool_call_parser"):
        ChatFormat(PLAIN, tokenizer, tool_parser="nobody")


@pytest.mark.parametrize(
    ("tools", "choice", "fault"),
    [
        ([{"type": "function"}], "auto", r"tools\[0\]"),
        ([{"type": "function", "function": {"name": "f"}}] * 2, "auto", "two functions"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "auto", "arguments are an object"),
        ([{"type": "function", "function": {"name": "f"}}], "g", "tool_choice"),
    ],
)
def test_tools_that_are_none_are_refused(tools: list[dict[str, Any]], choice: str, fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=fault):
        read_tools(tools, choice)

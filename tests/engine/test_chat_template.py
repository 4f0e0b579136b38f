"""Chat templates: what messages become, and what a template that fails says."""

from __future__ import annotations

import time
from typing import Any

import pytest
from crowding import patience

from engine import chat_template as module
from engine import template_bounds
from engine.chat_template import ChatTemplate, read_template
from engine.errors import ConfigError, InvalidRequestError
from engine.loader.resolve import resolve_model
from server.chat.messages import MessageReader
from server.errors import ApiError
from server.protocol.chat import Message

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _plain(*messages: dict[str, Any], knows_developer: bool = False) -> list[dict[str, Any]]:
    template = ChatTemplate("developer reasoning_content" if knows_developer else "reasoning_content")
    return MessageReader(template, allow_unknown=False).read([Message.model_validate(message) for message in messages])


def _render(source: str, *messages: dict[str, Any], opens: bool = True, continues: bool = False, **variables: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(_plain(*messages), opens, continues, variables)


def test_messages_are_rendered_as_the_template_says() -> None:
    text = _render(CHATML, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_default_model_renders_as_transformers_renders_it() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = resolve_model(None)
    template = source.chat_template()
    assert template is not None
    tokens = source.tokenizer()
    messages = [{"role": "user", "content": "Hi <b>&"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}]
    ours = ChatTemplate(template, tokens.bos_token, tokens.eos_token).render(messages, True, False, {})
    theirs, _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, bos_token=tokens.bos_token, eos_token=tokens.eos_token
    )
    assert [ours] == list(theirs)


def test_what_transformers_gives_to_templates_is_there() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% generation %}{{ m | tojson }}"
        "{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}{{ enable_thinking }}"
    )
    text = _render(source, {"role": "system", "content": "x"}, {"role": "user", "content": "<é>"}, enable_thinking=False)
    assert text == '<s>{"role": "user", "content": "<é>"}4False'


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert _plain({"role": "user", "content": parts}) == [{"role": "user", "content": "one\ntwo"}]


def test_a_part_that_is_no_text_is_refused_by_its_place() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(ApiError) as caught:
        _plain({"role": "user", "content": parts})
    assert (caught.value.param, caught.value.code) == ("messages.0.content.1", "unsupported_parameter")


def test_developer_is_system_unless_the_template_knows_it() -> None:
    assert _plain({"role": "developer", "content": "x"})[0]["role"] == "system"
    assert _plain({"role": "developer", "content": "x"}, knows_developer=True)[0]["role"] == "developer"
    assert ChatTemplate("{% if message.role == 'developer' %}{% endif %}").knows_developer


def test_tool_calls_have_no_null_content_and_their_answers_have_the_functions_name() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    broken = {"id": "call_2", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    plain = _plain(
        {"role": "assistant", "content": None, "tool_calls": [call, broken]}, {"role": "tool", "tool_call_id": "call_1", "content": "2"}
    )
    assert "content" not in plain[0]
    assert [one["function"]["arguments"] for one in plain[0]["tool_calls"]] == ['{"a": 1}', '{"a": ']
    assert plain[1] == {"role": "tool", "tool_call_id": "call_1", "content": "2", "name": "add"}


def test_an_answer_to_a_call_that_was_not_made_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no message before it calls a tool") as caught:
        _plain({"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "call_1", "content": "2"})
    assert caught.value.param == "messages.1.tool_call_id"


def test_reasoning_reaches_a_template_under_the_name_that_it_knows() -> None:
    reader = MessageReader(ChatTemplate("{{ messages[0].reasoning_content }}"), allow_unknown=False)
    (plain,) = reader.read([Message.model_validate({"role": "assistant", "content": "x", "reasoning": "hm"})])
    assert plain == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def test_names_and_fields_that_only_the_template_knows_reach_it() -> None:
    text = _render("{{ messages[0].name }} {{ messages[0].reasoning_content }}", {"role": "user", "name": "Ann", "reasoning_content": "hm"})
    assert text == "Ann hm"


@pytest.mark.parametrize("content", ["Once upon", "Once upon ", " Once\n"])
def test_a_final_message_is_continued_to_the_letter(content: str) -> None:
    text = _render(CHATML, {"role": "user", "content": "Go"}, {"role": "assistant", "content": content}, opens=False, continues=True)
    assert text == f"<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n{content}"


def test_a_final_message_that_the_template_hides_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        _render("{{ messages[0].content[:3] }}", {"role": "assistant", "content": "Once upon"}, opens=False, continues=True)


def test_the_templates_own_words_are_passed_on() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}", {"role": "user", "content": "Hi"})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content + 1 }}", "{{ messages[7].content }}", "{{ 1 / 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"],
)
def test_whatever_goes_wrong_in_a_template_is_the_requests_fault(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot render these messages"):
        _render(source, {"role": "user", "content": "Hi"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% set n = namespace() %}{{ n.__init__.__globals__ }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        _render(source, {"role": "user", "content": "Hi"})


def test_a_rendering_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LENGTH", 10_000)
    with pytest.raises(InvalidRequestError, match="too long a prompt"):
        _render("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", {"role": "user", "content": "Hi there"})


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
        "{% macro m(n) %}{% for i in range(9) %}{{ m(n) }}{% endfor %}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{{ m(n) ~ m(n) if n else '' }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [1] * 10000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ 'a' | center(10000000000) }}",
        "{% set n = namespace(x='a' * 1000) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a' * 1000) %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    ],
)
def test_a_template_that_takes_all_time_or_memory_is_given_up(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template_bounds, "MAX_SECONDS", 0.1)
    began = time.monotonic()
    with pytest.raises(InvalidRequestError):
        _render(source, {"role": "user", "content": "Hi"})
    took = time.monotonic() - began
    assert took < patience(1)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 3 * 4 }} {{ 2 ** 10 }} {{ 'a' * 3 }} {{ 7 % 4 }} {{ '%03d' % 5 }} {{ 1.5 * 2 }} {{ 2 ** -1 }}", "12 1024 aaa 3 005 3.0 0.5"),
        ("{{ 1 ~ 'a' ~ none ~ [1] }} {{ 'x' + 'y' }} {{ 1 + 2 }} {{ [1] + [2] }}", "1aNone[1] xy 3 [1, 2]"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m(1) }}{% call m(3) %}!{% endcall %}",
            "1232!",
        ),
        ("{% for a in [3, 4] if a > 3 %}{{ loop.index }}{{ a }}{{ loop.last }}{% else %}none{% endfor %}", "14True"),
        ("{% for a in [] %}{{ a }}{% else %}none{% endfor %}", "none"),
        ("{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "13"),
        ("{{ '%s-%s' | format('a', 'b') }} [{{ 'a' | center(5) }}]", "a-b [  a  ]"),
    ],
)
def test_the_bounds_change_nothing_else(source: str, text: str) -> None:
    assert _render(source, {"role": "user", "content": "Hi"}) == text


def test_a_template_is_given_as_text_or_as_a_file(tmp_path: Any) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(CHATML)
    assert read_template(CHATML) == read_template(str(path)) == CHATML


def test_a_template_that_is_neither_a_file_nor_valid_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="neither"):
        read_template("/nonexistent.jinja")
    with pytest.raises(ConfigError, match="not valid"):
        ChatTemplate("{% if %}")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "colour": "blue"}, "messages.0.colour"),
        ({"role": "assistant", "content": "x", "annotations": [{}]}, "messages.0.annotations"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "lang": "de"}]}, "messages.0.content.0.lang"),
    ],
)
def test_a_field_that_neither_the_api_nor_the_template_knows_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _plain(message)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, "unknown_parameter")


def test_a_field_that_the_template_knows_reaches_it_and_others_pass_if_they_say_nothing() -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "reasoning_content": "thought", "reasoning": "too"}
    assert _plain(answer) == [{"role": "assistant", "content": "x", "reasoning_content": "thought"}]
    part = {"type": "text", "text": "x", "annotations": [], "cache_control": {"type": "ephemeral"}}
    assert _plain({"role": "user", "content": [part]}) == [{"role": "user", "content": "x"}]


def test_unknown_fields_are_left_out_where_unknown_parameters_are_allowed() -> None:
    reader = MessageReader(ChatTemplate("{{ messages }}"), allow_unknown=True)
    assert reader.read([Message.model_validate({"role": "user", "content": "x", "colour": "blue"})]) == [{"role": "user", "content": "x"}]

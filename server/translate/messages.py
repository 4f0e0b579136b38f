"""A request in Anthropic's shape as a chat completion's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import InvalidRequestError
from server.protocol.chat import ChatCompletionRequest
from server.protocol.messages import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    MessagesRequest,
    Prompting,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from server.translate.parameters import Rename, chat_request, rename_with

# Chat's names of parameters to Anthropic's.
NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "reasoning_effort": "thinking",
    "thinking_token_budget": "thinking",
    "parallel_tool_calls": "tool_choice",
    "continue_final_message": "messages",
}
INNER_NAMES = {"function": "", "json_schema": "", "parameters": "input_schema", "tool_call_id": "tool_use_id"}

# Which blocks may stand in whose messages.
_BLOCKS = {"user": (TextBlock, ToolResultBlock), "system": (TextBlock,), "assistant": (TextBlock, ThinkingBlock, ToolUseBlock)}


@dataclass
class Prompt:
    """What a prompt is made of, as chat has it."""

    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # where in the request each message came from


def translated(body: Prompting) -> tuple[ChatCompletionRequest, Rename]:
    """The chat completion that answers a request, or that is only counted; and how its names are called in the request.

    Raises InvalidRequestError or ApiError 400 for what cannot be.
    """
    prompt = _prompt(body)
    rename = rename_with(NAMES, INNER_NAMES, prompt.origins)
    fields = {**prompt.fields, **(_sampling_fields(body) if isinstance(body, MessagesRequest) else {})}
    return chat_request({name: value for name, value in fields.items() if value is not None}, rename), rename


def _prompt(body: Prompting) -> Prompt:
    prompt = Prompt()
    if body.system:
        _add(prompt, {"role": "system", "content": _texts(body.system)}, "system")
    for index, turn in enumerate(body.messages):
        _add_message(prompt, turn, f"messages.{index}")
    for message in prompt.messages:
        if "tool_calls" in message and not message["content"]:
            message["content"] = None  # some templates show an empty text, where they would show nothing
    prompt.fields = {"messages": prompt.messages, **_thinking(body)}
    if not any(message["role"] != "system" for message in prompt.messages):
        raise InvalidRequestError("messages say nothing: there is nothing to answer", param="messages")
    last = prompt.messages[-1]
    if last["role"] == "assistant":
        if "tool_calls" in last:
            raise InvalidRequestError("the last message calls tools: their tool_result blocks must follow", param=prompt.origins[-1])
        prompt.fields["continue_final_message"] = True
        last["content"] = "\n".join(part["text"] for part in last["content"])
    if body.tools:
        prompt.fields["tools"] = [_chat_tool(tool) for tool in body.tools]
    if body.tool_choice is not None:
        prompt.fields |= _tool_choice(body.tool_choice, bool(body.tools))
    return prompt


def _sampling_fields(body: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **body.passed_on(),
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "user": body.metadata.user_id,
    }
    if body.output_config.format is not None:
        schema = {"name": "output", "schema": body.output_config.format.schema_, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.thinking is not None and body.thinking.budget_tokens is not None and body.thinking.type == "enabled":
        fields["thinking_token_budget"] = body.thinking.budget_tokens
    if body.thinking is not None and body.thinking.display == "omitted":
        fields["include_reasoning"] = False
    return fields


def _thinking(body: Prompting) -> dict[str, Any]:
    if body.thinking is None or body.thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if body.thinking.type == "adaptive":
        return {}
    return {"reasoning_effort": body.output_config.effort or "medium"}


def _add_message(prompt: Prompt, message: AnthropicMessage, where: str) -> None:
    if isinstance(message.content, str):
        _add(prompt, {"role": message.role, "content": _texts(message.content)}, where)
        return
    chat: dict[str, Any] = {"role": message.role, "content": []}
    thoughts: list[str] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content.{index}"
        if not isinstance(block, _BLOCKS[message.role]):
            raise InvalidRequestError(f"{place}: a {block.type} block cannot stand in a message of the {message.role}", param=place)
        match block:
            case TextBlock():
                chat["content"].append(_text(block.text))
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                chat.setdefault("tool_calls", []).append(
                    {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
                )
            case ToolResultBlock():
                _add(prompt, _tool_message(block), where)
    if thoughts:
        chat["reasoning_content"] = "".join(thoughts)
    if chat["content"] or message.role == "assistant":
        _add(prompt, chat, where)


def _add(prompt: Prompt, message: dict[str, Any], origin: str) -> None:
    """Messages of one role that follow each other are one turn, as at Anthropic."""
    last = prompt.messages[-1] if prompt.messages else {}
    if message["role"] == last.get("role") != "tool" and "tool_calls" not in last:
        last["content"] += message["content"]
        last |= {**message, "content": last["content"]}
    else:
        prompt.messages.append(message)
        prompt.origins.append(origin)


def _tool_message(block: ToolResultBlock) -> dict[str, Any]:
    content = _texts(block.content)
    if block.is_error:  # chat has no other place for it
        content = [_text("Error:"), *content]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _tool_choice(choice: AnthropicToolChoice, has_tools: bool) -> dict[str, Any]:
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequestError("tool_choice.name: this field is required for the type tool", param="tool_choice.name")
    named = {"type": "function", "function": {"name": choice.name}}
    fields: dict[str, Any] = {"tool_choice": {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type]}
    if has_tools and choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _chat_tool(tool: AnthropicTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _texts(content: str | Sequence[TextBlock]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else [_text(block.text) for block in content]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}

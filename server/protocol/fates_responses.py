"""The fate of every parameter of POST /v1/responses and POST /v1/responses/input_tokens."""

from __future__ import annotations

from server.protocol.fate import accepted, by_name, implemented, refused
from server.protocol.translated import PASSED_ON

# Parameters of chat that the SDK's type for responses has too.
_OPENAI = frozenset({"temperature", "top_p"})
_NO_HINT = "the prefix cache needs no hint"

_PROMPTING = (
    implemented("model", "one of `GET /v1/models`; left out: the server's model"),
    implemented(
        "input",
        "a string, or items: messages of text, `function_call`, `function_call_output`, `reasoning`, `item_reference`; "
        "other items and parts that are not text are refused",
    ),
    implemented("instructions", "a system message; of this request alone, as at OpenAI"),
    implemented("previous_response_id", "a stored response that this one continues"),
    implemented("text", "`format`: text, `json_object` or `json_schema`, as `response_format` in chat; `verbosity` as in chat"),
    implemented("reasoning", "`effort` as in chat; `summary: auto` gives the reasoning itself; other summaries are refused"),
    implemented("tools", "functions, also in a `namespace`; tools that OpenAI runs itself, and `custom` ones, are refused"),
    implemented("tool_choice", "`none`, `auto`, `required`, a function, or `allowed_tools`"),
    implemented("parallel_tool_calls", "as in chat"),
    implemented("truncation", "`disabled`: too long a conversation is refused; `auto`: its oldest messages are left out until it fits"),
    refused("conversation", "conversations are not kept: use previous_response_id"),
)

RESPONSES = by_name(
    (
        *_PROMPTING,
        *(implemented(name, note, extra=name not in _OPENAI) for name, note in PASSED_ON.items()),
        implemented("store", "true by default: see `--response-store` and `--max-stored-responses`"),
        implemented("background", "answer at once with `status: queued`; not with `store: false`"),
        implemented("metadata", "up to 16 pairs, kept with the response"),
        implemented("include", "`message.output_text.logprobs`; the other values concern what is not here, and have no effect"),
        implemented("max_output_tokens", "reasoning included; left out: to the end of the context"),
        implemented("top_logprobs", "0 to 20, with `include: [message.output_text.logprobs]`"),
        implemented("stream", "semantic events"),
        implemented("stream_options", "`include_obfuscation` has no effect"),
        implemented("user", "as in chat"),
        implemented("safety_identifier", "the same as `user`"),
        implemented("stop", "as in chat", extra=True),
        accepted("client_metadata", "bookkeeping", extra=True),
        implemented("thinking_token_budget", "as in chat", extra=True),
        accepted("prompt_cache_key", _NO_HINT),
        accepted("prompt_cache_options", _NO_HINT),
        accepted("prompt_cache_retention", _NO_HINT),
        accepted("max_tool_calls", "it bounds the calls of OpenAI's own tools, of which there are none"),
        refused("service_tier", "there is one tier, which is `default`", "auto", "default"),
        refused("context_management", "nothing compacts a conversation: use truncation", []),
        refused("prompt", "prompt templates are not kept here"),
        refused("moderation", "there is no moderation"),
        refused("image", "the model reads text alone"),
        refused("access_programs", "there are no such programs", {}),
        refused("background_options", "background responses have no options", {}),
    )
)

INPUT_TOKENS = by_name((*_PROMPTING, refused("personality", "the model has no such control")))

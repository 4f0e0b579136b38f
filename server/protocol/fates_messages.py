"""The fate of every parameter of POST /v1/messages and POST /v1/messages/count_tokens.

Extra ones are those of Anthropic's beta, and others that its SDK lacks.
"""

from __future__ import annotations

from server.protocol.fate import Fate, Parameter, accepted, by_name, implemented, refused
from server.protocol.translated import PASSED_ON

_PROMPTING = (
    implemented("model", "one of `GET /v1/models`; left out: the server's model"),
    implemented(
        "messages",
        "text, `thinking`, `tool_use` and `tool_result` blocks; others are refused. An assistant's message at the end is continued",
    ),
    implemented("system", "text, or blocks of it"),
    implemented("tools", "functions; tools that Anthropic runs or defines itself are refused"),
    implemented("tool_choice", "`auto`, `any`, `tool`, `none`; `disable_parallel_tool_use`"),
    implemented(
        "thinking",
        "`enabled` with `budget_tokens`, `disabled` (the default) or `adaptive`; `display: omitted` hides it; refused where the model "
        "does not reason",
    ),
    implemented("output_config", "`format`: `json_schema`; `effort` counts where there is thinking"),
    accepted("cache_control", "the prefix cache needs no hint"),
    accepted("speed", "a hint"),
    accepted("user_profile_id", "bookkeeping"),
    accepted("workspace_id", "bookkeeping"),
)

_BETA = (
    refused("mcp_servers", "the server calls no tools itself", [], extra=True),
    refused(
        "context_management", "nothing compacts a conversation", {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, extra=True
    ),
    refused("compaction", "nothing compacts a conversation", extra=True),
    refused("fallbacks", "there is no other model", [], extra=True),
    refused("fallback_credit_token", "there is no other model", extra=True),
    refused("billing_policy", "there are no bills", extra=True),
    # With this code the SDK's tool runner goes on without a thread.
    Parameter(
        "thread",
        Fate.REFUSED,
        "the server keeps no conversations; the SDK's tool runner goes on without",
        extra=True,
        code="thread_unsupported_request",
    ),
)

MESSAGES = by_name(
    (
        *_PROMPTING,
        *(implemented(name, note, extra=True) for name, note in PASSED_ON.items()),
        implemented("max_tokens", "required, thinking included; one that goes beyond the context means up to its end"),
        implemented("stop_sequences", "as `stop` in chat"),
        implemented("stream"),
        implemented("metadata", "`user_id`, as `user` in chat"),
        accepted("diagnostics", "bookkeeping"),
        refused("service_tier", "there is one tier", "auto", "standard_only"),
        refused("inference_geo", "the server is where it is"),
        refused("container", "there are no containers"),
        *_BETA,
    )
)

COUNT_TOKENS = by_name(_PROMPTING)

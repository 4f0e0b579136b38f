"""Loaded by schemathesis in `loadtest.schemathesis_run`: keeps generated requests short, and asks of every refusal its error object."""

from __future__ import annotations

from typing import Any

import schemathesis

FEW = 3  # tokens, and samples
_LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Ask for few tokens where many would come. What is no valid number stays as it is."""
    limit, body = _LIMITS.get(case.path), case.body
    if limit is None or not isinstance(body, dict):
        return
    other = "max_completion_tokens"
    if type(body.get(other)) is int and body[other] > FEW:
        body[other] = FEW
    if (body.get(limit) is None and body.get(other) is None) or (type(body.get(limit)) is int and body[limit] > FEW):
        body[limit] = FEW
    for name in ("n", "best_of", "min_tokens"):
        if type(body.get(name)) is int and body[name] > FEW:
            body[name] = FEW


@schemathesis.check
def error_object(context: Any, response: Any, case: Any) -> None:
    """Every refusal has OpenAI's error object, or Anthropic's under /v1/messages."""
    if response.status_code < 400 or case.path == "/ready":
        return
    error = response.json()["error"]
    names = {"type", "message"} if case.path.startswith("/v1/messages") else {"message", "type", "param", "code"}
    assert names <= set(error), response.text
    assert error["message"], response.text

"""The response object, as POST /v1/responses begins it and everything later fills it in."""

from __future__ import annotations

from typing import Any

from engine.sampling_params import SamplingParams
from server.generation import Generation
from server.protocol.responses import ResponsesRequest


def new_response(response_id: str, created: int, model: str, body: ResponsesRequest, params: SamplingParams) -> dict[str, Any]:
    """A response that has not begun. `created`: seconds since 1970."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "queued" if body.background else "in_progress",
        "background": body.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions if not isinstance(body.instructions, list) else [_dump(item) for item in body.instructions],
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": None,
        "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"} if body.text.format is None else _dump(body.text.format), "verbosity": "medium"},
        "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else _dump(body.tool_choice),
        "tools": [_dump(tool) for tool in body.tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }


def response_usage(generation: Generation, reasoning_tokens: int) -> dict[str, Any]:
    """The tokens that a response took."""
    prompt, completion = len(generation.prompt_token_ids), generation.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt + completion,
    }


def _dump(part: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = part.model_dump(by_alias=True, exclude_none=True)
    return dumped

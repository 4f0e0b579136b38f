"""The bodies of POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from pydantic import model_validator

from server.protocol.body import RequestBody, TokenIds
from server.protocol.chat import Messages, TemplateBody


class TokenizeRequest(TemplateBody):
    """Text or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # None: true for a prompt, false for messages, whose template writes them out
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_the_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        return self


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: TokenIds

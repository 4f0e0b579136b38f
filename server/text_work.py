"""What is done with texts: bodies read, templates rendered, tokens made of text and text of tokens, constraints checked.

Short ones at once, long ones on threads, beside the event loop that all streams share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from engine.chat.format import ChatFormat
from engine.chat_template import read_template
from engine.errors import ConfigError, InvalidRequestError, OctavoError
from engine.structured_outputs import StructuredOutputs
from engine.tool_calls.tools import ToolUse
from server.chat.messages import MessageReader
from server.config import ServerConfig
from server.errors import unsupported
from server.observability.logs import logger
from server.protocol.chat import Message, TemplateBody

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine

Result = TypeVar("Result")

# Text of so many characters is tokenized in about a millisecond: shorter ones are not worth a thread, longer ones would hold up streams.
# Bodies are read faster, and conversations come as fast as bodies.
_LONG_TEXT = 4096
_LONG_BODY = 32 << 10
_REQUEST_FORMATS = 16  # templates of requests that are kept compiled


class TextWork:
    """One model's tokenizer and chat template, for many requests at once.

    Raises ConfigError when the configured chat template cannot be read or compiled.
    """

    def __init__(self, engine: AsyncLLMEngine, config: ServerConfig) -> None:
        self.tokenizer = engine.tokenizer
        self._engine = engine
        self._config = config
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")
        # One alone: what is hard to compile, on purpose perhaps, takes no more than one core from the answers under way.
        self._grammar_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._request_formats: dict[str, ChatFormat] = {}  # by their templates; the oldest goes first
        self._chat_format, self._format_problem = self._load_chat_format()

    async def read(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """The result of `work`, which reads a body of `num_bytes` bytes."""
        return await self._off_loop(num_bytes > _LONG_BODY, work)

    async def encode(self, texts: list[str], add_special_tokens: bool, param: str) -> list[list[int]]:
        """Token ids of each text. Raises InvalidRequestError for a text that is too long for the model whatever its tokens are."""
        for text in texts:
            if len(text) > _LONG_TEXT:
                await self._check_length(text, param)
        total = sum(map(len, texts))
        return await self._off_loop(
            total > _LONG_TEXT, lambda: [self.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]
        )

    async def decode(self, token_ids: list[int]) -> str:
        """The text of token ids. Raises InvalidRequestError for ids that the vocabulary has not."""
        self.check_token_ids(token_ids, "tokens")
        return await self._off_loop(len(token_ids) > _LONG_TEXT, lambda: self.tokenizer.decode(token_ids))

    async def token_strings(self, token_ids: list[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return await self._off_loop(len(token_ids) > _LONG_TEXT, lambda: [self.tokenizer.id_to_token(token_id) for token_id in token_ids])

    @property
    def chat_format(self) -> ChatFormat:
        """How the model speaks. Raises InvalidRequestError for a model without a chat template."""
        if self._chat_format is None:
            raise InvalidRequestError(self._format_problem, param="messages", code="no_chat_template")
        return self._chat_format

    async def format_of(self, body: TemplateBody) -> ChatFormat:
        """The format of the template that a body brings, or else the model's.

        Raises ApiError 400 for a template where none is taken from requests, and InvalidRequestError for one that is not valid.
        """
        source = body.chat_template
        if source is None:
            return self.chat_format
        if not self._config.trust_request_chat_template:
            remedy = "templates come from the model, unless the server runs with --trust-request-chat-template"
            raise unsupported("chat_template", f"chat_template is not supported here: {remedy}")
        if source not in self._request_formats:
            settings = self._engine.config
            try:
                made = await self._off_loop(
                    True, lambda: ChatFormat(source, self.tokenizer, settings.tool_call_parser, settings.reasoning_parser)
                )
            except ConfigError as error:
                raise InvalidRequestError(str(error), param="chat_template") from error
            while len(self._request_formats) >= _REQUEST_FORMATS:
                del self._request_formats[next(iter(self._request_formats))]
            self._request_formats[source] = made
        return self._request_formats[source]

    async def render(self, messages: list[Message], body: TemplateBody, use: ToolUse | None, num_bytes: int) -> str:
        """A prompt's text from chat messages, which came in a body of `num_bytes` bytes.

        Raises InvalidRequestError when the template cannot render them.
        """
        format = await self.format_of(body)
        reader = MessageReader(format.template, self._config.allow_unknown_parameters)
        opens, continues, variables = body.opens_answer(), body.continue_final_message, body.template_variables(format)

        def work() -> str:
            return format.render(reader.read(messages), use, opens, continues, variables)

        # A template that came with the request may take as long as it is allowed to.
        return await self._off_loop(num_bytes > _LONG_TEXT or body.chat_template is not None, work)

    async def check_constraint(self, constraint: StructuredOutputs | None, param: str) -> None:
        """Raises InvalidRequestError that names `param` when answers cannot be held to the constraint."""
        if constraint is None or self._engine.grammars.has(constraint):
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._grammar_thread, self._engine.grammars.check, constraint)
        except InvalidRequestError as refusal:
            raise InvalidRequestError(str(refusal), param, refusal.code) from refusal

    def check_token_ids(self, token_ids: list[int], param: str) -> None:
        """Raises InvalidRequestError unless all ids are in the vocabulary."""
        size = self.tokenizer.vocab_size
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < size:
                raise InvalidRequestError(f"{param} holds {token_id}, which is no token id: they go from 0 to {size - 1}", param=param)

    async def _check_length(self, text: str, param: str) -> None:
        longest = await self._off_loop(True, lambda: self.tokenizer.longest_token)
        most = longest * self._engine.max_model_len
        if len(text) > most:
            raise InvalidRequestError(
                f"{param} has {len(text)} characters, but this model's context of {self._engine.max_model_len} tokens "
                f"cannot hold more than {most}. Please reduce its length.",
                param=param,
                code="context_length_exceeded",
            )

    async def _off_loop(self, is_long: bool, work: Callable[[], Result]) -> Result:
        if not is_long:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _load_chat_format(self) -> tuple[ChatFormat | None, str]:
        given = self._config.chat_template
        source = read_template(given) if given is not None else self._engine.source.chat_template()
        if source is None:
            return None, "this model has no chat template: use /v1/completions, or start the server with --chat-template"
        try:
            settings = self._engine.config
            return ChatFormat(source, self.tokenizer, settings.tool_call_parser, settings.reasoning_parser), ""
        except OctavoError as error:
            if given is not None:
                raise
            logger.warning("the model's chat template cannot be used: %s", error)
            return None, f"the model's chat template cannot be used: {error}"

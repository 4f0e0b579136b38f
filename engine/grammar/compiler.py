"""GrammarCompiler: from a constraint to a matcher, which knows the tokens that may come next. The work is llguidance's."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import InvalidRequestError
from engine.structured_outputs import StructuredOutputs
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CACHED = 64  # compiled grammars; one that is made to be large grows to about 25 MB

# About 6 ms at the start and 7 ms a token (llguidance's figures, see its LLParserLimits); what takes more is refused, or ends.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 50_000,
    "max_lexer_states": 25_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


class GrammarCompiler:
    """Compiles constraints for one vocabulary, each once. Safe to call from several threads."""

    def __init__(self, load_tokenizer: Callable[[], Tokenizer], vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """`vocab_size` is the model's, of which the tokenizer may fill a part. It is loaded when the first constraint comes."""
        self._load_tokenizer = load_tokenizer
        self.vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._vocabulary: tuple[_Vocabulary, LLTokenizer] | None = None
        self._cache: OrderedDict[bytes, LLMatcher] = OrderedDict()
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def matcher(self, settings: StructuredOutputs) -> LLMatcher:
        """A matcher at the start of the grammar, the caller's own. Raises InvalidRequestError for what cannot be enforced."""
        return self._compiled(settings).deep_copy()

    def check(self, settings: StructuredOutputs) -> None:
        """Raises InvalidRequestError for what cannot be enforced."""
        self._compiled(settings)

    def has(self, settings: StructuredOutputs) -> bool:
        """Whether it is compiled already."""
        with self._lock:
            return self._encoder.encode(settings) in self._cache

    def _compiled(self, settings: StructuredOutputs) -> LLMatcher:
        with self._lock:
            key = self._encoder.encode(settings)
            compiled = self._cache.pop(key, None)
        if compiled is None:
            compiled = self._compile(settings)  # without the lock: it may take a while
        with self._lock:
            self._cache[key] = compiled
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def _compile(self, settings: StructuredOutputs) -> LLMatcher:
        if not self._eos_token_ids:
            message = "this model has no token that ends a sequence, which a constrained answer needs"
            raise InvalidRequestError(message, param="structured_outputs")
        # Imported here: whoever makes no such requests does not wait for it at the start.
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

        from engine.grammar.lark import as_grammar
        from engine.grammar.masks import masked_tokens

        if self._vocabulary is None:
            vocabulary = _Vocabulary(self._load_tokenizer(), self.vocab_size, self._eos_token_ids[0])
            self._vocabulary = vocabulary, LLTokenizer(TokenizerWrapper(vocabulary), eos_token=self._eos_token_ids)
        vocabulary, tokens = self._vocabulary
        matcher = LLMatcher(tokens, as_grammar(settings, vocabulary.special_token), log_level=0, limits=LLParserLimits(**_LIMITS))
        # Some grammars turn out to be too ambiguous where they are first looked at.
        probe = matcher.deep_copy()
        if not matcher.is_error():
            masked_tokens([probe], self.vocab_size)
        if probe.is_error():
            raise _refusal(settings, probe.get_error())
        return matcher


class _Vocabulary:
    """The tokens as llguidance's TokenizerWrapper reads them: their bytes, which of them are no text, and a call that encodes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        ids = range(tokenizer.vocab_size)
        self.tokens = [*map(tokenizer.token_bytes, ids), *[b""] * (vocab_size - tokenizer.vocab_size)]
        self.special_token_ids = [token_id for token_id in ids if tokenizer.is_special(token_id)]

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace"))

    def _encode(self, text: str) -> list[int]:
        """A grammar's text is text, though it may be spelled like a special token: that is cut in two then."""
        token_ids = []
        for token_id in self._tokenizer.encode(text, add_special_tokens=False):
            if self._tokenizer.is_special(token_id):
                name = self._tokenizer.token_bytes(token_id).decode()
                token_ids += [*self._encode(name[:1]), *self._encode(name[1:])]
            else:
                token_ids.append(token_id)
        return token_ids

    def special_token(self, name: str) -> int | None:
        token_id = self._tokenizer.token_to_id(name)
        return token_id if token_id is not None and self._tokenizer.is_special(token_id) else None


def _refusal(settings: StructuredOutputs, reason: str) -> InvalidRequestError:
    kind, code = ("JSON schema", "unsupported_schema") if settings.json is not None else ("grammar", "invalid_grammar")
    # llguidance's word for a rule that calls itself without an end.
    first_line = reason.strip().split("\n")[0][:500].replace("NoExtensionBias", "it can never come to an end (NoExtensionBias)")
    return InvalidRequestError(f"the {kind} cannot be enforced: {first_line}", param="structured_outputs", code=code)

"""How the next token of a request is chosen, and when the request ends."""

from __future__ import annotations

import reprlib
from typing import Any, Literal

import msgspec

from engine.errors import InvalidRequestError
from engine.logits_processors import MAX_PER_REQUEST, NamedLogitsProcessor
from engine.reasoning.budget import ThinkingBudget
from engine.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20  # OpenAI's bound on top_logprobs
MAX_N = 128
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_TOKENS_OF_BAD_WORD = 64
MAX_PATTERN_SIZE = 1024


class RepetitionDetection(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """End a sequence whose newest tokens are one pattern, `min_count` times in a row.

    Sound settings for prose are max_pattern_size 64, min_count 4 and min_pattern_size 2. Short patterns do occur in good answers (rows
    of dashes, zeros of a table), so whoever wants those lets patterns of one token count only with a larger min_count.
    """

    max_pattern_size: int  # tokens of the longest pattern that is looked for
    min_pattern_size: int = 1  # tokens of the shortest
    min_count: int = 4  # occurrences in a row, the first one included

    def __post_init__(self) -> None:
        """Raises InvalidRequestError for sizes and counts that make no pattern."""
        for holds, rule in (
            (1 <= self.max_pattern_size <= MAX_PATTERN_SIZE, f"max_pattern_size must be between 1 and {MAX_PATTERN_SIZE}"),
            (1 <= self.min_pattern_size <= self.max_pattern_size, "min_pattern_size must be between 1 and max_pattern_size"),
            (2 <= self.min_count <= 10_000, "min_count must be between 2 and 10000"),
        ):
            if not holds:
                raise InvalidRequestError(f"repetition_detection: {rule}", param="repetition_detection")


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The sampling settings of one request, under the names that vLLM uses.

    They apply in this order: repetition_penalty, frequency_penalty, presence_penalty; logit_bias; logits_processors;
    allowed_token_ids; bad_words; min_tokens masks the stop tokens; structured_outputs masks what its grammar does not allow; then
    temperature; then min_p, top_k and top_p, each on what the one before left; then one draw. Log probabilities are of the model's own
    distribution, before all of these. A sequence of which nothing is left to draw ends with finish_reason "error".
    """

    n: int = 1  # sequences to generate for the prompt, with sample indices 0 to n - 1
    best_of: int | None = None  # generate so many, and return the n with the highest mean log probability per token; None: n
    use_beam_search: bool = False  # the n most probable sequences rather than n drawn ones; temperature, top_p and the like play no part
    length_penalty: float = 1.0  # beam search: a sequence scores its summed log probability / its length to this power
    early_stopping: bool | Literal["never"] = False  # beam search: True ends with n sequences found; "never" only if none can be better
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # keep the smallest set of most probable tokens whose probabilities reach this
    top_k: int = 0  # keep the k most probable tokens; 0 keeps all
    min_p: float = 0.0  # keep tokens at least this probable relative to the most probable one
    presence_penalty: float = 0.0  # taken off the logits of tokens that are in the output
    frequency_penalty: float = 0.0  # taken off so often as the token is in the output
    repetition_penalty: float = 1.0  # divides positive logits of tokens in prompt or output, multiplies negative ones
    logit_bias: dict[int, float] = {}  # by token id, added to its logit
    allowed_token_ids: tuple[int, ...] | None = None  # no others are generated; None: all are allowed
    bad_words: tuple[str, ...] = ()  # texts that are never generated, at the start of a word or within one
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # the same as tokens; `bad_words` become these on arrival
    logits_processors: tuple[Any, ...] = ()  # of LogitsProcessor; offline only, as functions cannot cross to another process
    named_logits_processors: tuple[NamedLogitsProcessor, ...] = ()  # of those that the engine was started with; they come first
    repetition_detection: RepetitionDetection | None = None  # end a sequence that says the same again and again; None: never
    structured_outputs: StructuredOutputs | None = None  # what the answer is constrained to
    thinking: ThinkingBudget | None = None  # a bound on the tokens of reasoning
    seed: int | None = None  # fixes the draws together with the sample index and the position; None: drawn on arrival
    max_tokens: int | None = None  # None: to the end of the context
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; k: the chosen token's and those of the k most probable
    prompt_logprobs: int | None = None  # the same for each token of the prompt but the first
    skip_special_tokens: bool = True
    visible_token_ids: tuple[int, ...] = ()  # special tokens that are not skipped: markers of tool calls and reasoning
    detokenize: bool = True

    def __post_init__(self) -> None:
        """Raises InvalidRequestError naming the first field that is out of its range."""
        _check(1 <= self.n <= MAX_N, "n", f"must be between 1 and {MAX_N}", self.n)
        fits = self.best_of is None or self.n <= self.best_of <= MAX_N
        _check(fits, "best_of", f"must be between n ({self.n}) and {MAX_N}", self.best_of)
        self._check_beam_search()
        _check(0.0 <= self.temperature <= 100.0, "temperature", "must be between 0 and 100", self.temperature)
        _check(0.0 < self.top_p <= 1.0, "top_p", "must be above 0 and at most 1", self.top_p)
        _check(0 <= self.top_k < 2**31, "top_k", "must be 0 (keep all) or a positive integer", self.top_k)
        _check(0.0 <= self.min_p <= 1.0, "min_p", "must be between 0 and 1", self.min_p)
        for name in ("presence_penalty", "frequency_penalty"):
            _check(-2.0 <= getattr(self, name) <= 2.0, name, "must be between -2 and 2", getattr(self, name))
        rule = "must be between 0.01 and 100"  # logits divided by much less would not be finite
        _check(0.01 <= self.repetition_penalty <= 100.0, "repetition_penalty", rule, self.repetition_penalty)
        self._check_token_lists()
        num_named = len(self.named_logits_processors)
        _check(num_named <= MAX_PER_REQUEST, "logits_processors", f"must be at most {MAX_PER_REQUEST}", num_named)
        self._check_structured_outputs()
        _check(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "must be an integer of 64 bits, signed or not", self.seed)
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "must be at least 1", self.max_tokens)
        _check(self.min_tokens >= 0, "min_tokens", "must not be negative", self.min_tokens)
        limit = self.max_tokens
        _check(limit is None or self.min_tokens <= limit, "min_tokens", f"must not exceed max_tokens ({limit})", self.min_tokens)
        _check(all(self.stop), "stop", "must not contain an empty string", self.stop)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(value is None or 0 <= value <= MAX_LOGPROBS, name, f"must be between 0 and {MAX_LOGPROBS}", value)

    def _check_token_lists(self) -> None:
        num_biases, num_words = len(self.logit_bias), len(self.bad_words) + len(self.bad_words_token_ids)
        _check(num_biases <= MAX_LOGIT_BIASES, "logit_bias", f"must have at most {MAX_LOGIT_BIASES} entries", num_biases)
        for token_id, bias in self.logit_bias.items():
            _check(-100.0 <= bias <= 100.0, "logit_bias", f"must be between -100 and 100 for token {token_id}", bias)
        _check(self.allowed_token_ids is None or bool(self.allowed_token_ids), "allowed_token_ids", "must not be empty", [])
        # Each text becomes up to two sequences of tokens.
        _check(len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", f"must hold at most {MAX_BAD_WORDS} texts", num_words)
        _check(num_words <= 3 * MAX_BAD_WORDS, "bad_words_token_ids", f"must be at most {2 * MAX_BAD_WORDS}", num_words)
        _check(all(word.strip() for word in self.bad_words), "bad_words", "must not contain an empty text", self.bad_words)
        _check(all(self.bad_words_token_ids), "bad_words_token_ids", "must not contain an empty sequence", self.bad_words_token_ids)

    def _check_structured_outputs(self) -> None:
        """It is the grammar that says where the answer may end. Requests over HTTP say by other names that they want one."""
        if self.structured_outputs is not None:
            for name in ("min_tokens", "ignore_eos", "use_beam_search"):
                rule = "must be left out with structured_outputs, response_format, and tools that must be called or are strict"
                _check(not getattr(self, name), name, rule, getattr(self, name))

    def _check_beam_search(self) -> None:
        if self.use_beam_search:
            _check(self.best_of in (None, self.n), "best_of", "must be left out with beam search, which finds the n best", self.best_of)
            _check(not self.stop, "stop", "must be left out with beam search: use stop_token_ids", self.stop)
            for name in _CHANGING_PROBABILITIES:
                value, default = getattr(self, name), getattr(_DEFAULTS, name)
                _check(value == default, name, "must be left out with beam search, which goes by the model's own probabilities", value)
        else:
            _check(self.length_penalty == 1.0, "length_penalty", "must be left out without use_beam_search", self.length_penalty)
            _check(self.early_stopping is False, "early_stopping", "must be left out without use_beam_search", self.early_stopping)
        _check(abs(self.length_penalty) <= 10.0, "length_penalty", "must be between -10 and 10", self.length_penalty)
        _check(self.early_stopping in (True, False, "never"), "early_stopping", 'must be true, false or "never"', self.early_stopping)

    @property
    def num_sequences(self) -> int:
        """Sequences that are generated."""
        return self.best_of or self.n

    @property
    def greedy(self) -> bool:
        # Under 1e-5 the division by the temperature would overflow where the limit is plain.
        return self.temperature < 1e-5


def _check(holds: bool, param: str, rule: str, value: object) -> None:
    if not holds:
        raise InvalidRequestError(f"{param} {rule}, but is {reprlib.repr(value)}", param=param)


_DEFAULTS = SamplingParams()
_CHANGING_PROBABILITIES = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "bad_words_token_ids",
    "logits_processors",
    "named_logits_processors",
    "repetition_detection",
)

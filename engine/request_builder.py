"""From a prompt and its settings to the sequences that the engine runs: checks, limits and seeds."""

from __future__ import annotations

import random
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

import msgspec

from engine.best_of import with_ranking
from engine.errors import InvalidRequestError
from engine.grammar.compiler import GrammarCompiler
from engine.logits_processors import LogitsProcessorRegistry
from engine.messages import EngineRequest
from engine.pooling_params import Pooling, PoolingParams
from engine.sampling_params import MAX_TOKENS_OF_BAD_WORD, SamplingParams
from engine.tokenizer import Tokenizer

_NOTHING_DRAWN = SamplingParams(max_tokens=1, detokenize=False)


class RequestBuilder:
    """Checks requests against one model's limits and numbers them in order of arrival."""

    def __init__(
        self,
        max_model_len: int,
        vocab_size: int,
        seed: int,
        tokenizer: Tokenizer | None = None,
        max_num_seqs: int | None = None,
        grammars: GrammarCompiler | None = None,
        pooling: Pooling = "mean",
        hidden_size: int | None = None,
        processors: LogitsProcessorRegistry | None = None,
    ) -> None:
        """`tokenizer` turns `bad_words` into tokens, `grammars` checks `structured_outputs`: without them, requests may have none.
        `pooling` is how the model gives embeddings of `hidden_size` dimensions, unless a request says otherwise."""
        self._grammars = grammars
        self._processors = processors or LogitsProcessorRegistry(())
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._pooling: Pooling = pooling
        self._hidden_size = hidden_size
        self._pool: tuple[int, int] | None = None
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._num_arrived = 0
        self._random = random.Random(seed) if seed else random.SystemRandom()

    def build(
        self,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> list[EngineRequest]:
        """One engine request for each sequence to generate. Raises InvalidRequestError for what can never be served."""
        prompt = list(prompt_token_ids)
        max_tokens = self._limit_output(prompt, params)
        self._check_token_ids("prompt", prompt)
        self._check_token_ids("stop_token_ids", params.stop_token_ids)
        self._check_token_ids("logit_bias", params.logit_bias)
        self._check_token_ids("allowed_token_ids", params.allowed_token_ids or ())
        for sequence in params.bad_words_token_ids:
            self._check_token_ids("bad_words_token_ids", sequence)
        if params.bad_words:
            params = self._with_bad_words_as_tokens(params)
        if params.structured_outputs is not None:
            if self._grammars is None:
                raise InvalidRequestError("structured_outputs needs a tokenizer", param="structured_outputs")
            self._grammars.check(params.structured_outputs)
        self._processors.check(params.named_logits_processors)
        _check_priority(priority)
        params = with_ranking(params)
        if params.use_beam_search:
            params = msgspec.structs.replace(params, temperature=0.0)  # nothing is drawn
            self.check_beams(params, len(prompt), max_tokens)
        self._num_arrived += 1
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        return [
            EngineRequest(
                request_id=request_id if params.num_sequences == 1 else f"{request_id}#{index}",
                prompt_token_ids=prompt,
                # They are the same for all samples, and a request that asks for them can share no cached prefix.
                params=params if index == 0 or params.prompt_logprobs is None else msgspec.structs.replace(params, prompt_logprobs=None),
                seed=seed,
                sample_index=index,
                group_id=None if params.num_sequences == 1 else request_id,
                max_tokens=max_tokens,
                arrival=self._num_arrived,
                priority=priority,
                tenant=tenant,
                cache_salt=cache_salt,
            )
            for index in range(params.num_sequences)
        ]

    def build_pooled(
        self,
        request_id: str,
        prompt_token_ids: SequenceOf[int],
        params: PoolingParams,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
    ) -> EngineRequest:
        """The engine request for one embedding. Raises InvalidRequestError for what can never be served."""
        prompt = list(prompt_token_ids)
        if not prompt:
            raise InvalidRequestError("the input is empty: it must hold at least one token", param="input")
        if len(prompt) > self._max_model_len:
            raise InvalidRequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, your input has {len(prompt)} tokens. "
                "Please reduce the length of the input.",
                param="input",
                code="context_length_exceeded",
            )
        self._check_token_ids("input", prompt)
        size = self._hidden_size
        if params.dimensions is not None and size is not None and params.dimensions > size:
            raise InvalidRequestError(
                f"dimensions must be at most {size}, which this model's embeddings have, but is {params.dimensions}", param="dimensions"
            )
        _check_priority(priority)
        self._num_arrived += 1
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=_NOTHING_DRAWN,
            seed=0,
            max_tokens=1,  # for the scheduler the vector is the one token
            arrival=self._num_arrived,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            pooling=msgspec.structs.replace(params, pooling=params.pooling or self._pooling),
        )

    def _check_token_ids(self, name: str, token_ids: Collection[int]) -> None:
        # Prompts are long and there may be many: no loop over their tokens in Python.
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < self._vocab_size:
                known = f"is not in the vocabulary of {self._vocab_size} tokens: ids must be of this model's own tokenizer"
                raise InvalidRequestError(f"token id {token_id} {known}", param=name)

    def _with_bad_words_as_tokens(self, params: SamplingParams) -> SamplingParams:
        """The engine knows tokens only. A word has two spellings in them: at the start of a word, after a space, and anywhere else."""
        if self._tokenizer is None:
            raise InvalidRequestError("bad_words needs a tokenizer: give bad_words_token_ids", param="bad_words")
        sequences = dict.fromkeys(params.bad_words_token_ids)
        for word in params.bad_words:
            for text in (word.lstrip(), " " + word.lstrip()):
                token_ids = self._tokenizer.encode(text, add_special_tokens=False)
                if len(token_ids) > MAX_TOKENS_OF_BAD_WORD:
                    message = f"bad_words holds a text of {len(token_ids)} tokens: at most {MAX_TOKENS_OF_BAD_WORD} are allowed"
                    raise InvalidRequestError(message, param="bad_words")
                sequences[tuple(token_ids)] = None
        return msgspec.structs.replace(params, bad_words=(), bad_words_token_ids=tuple(sequences))

    def learn_pool(self, num_blocks: int, block_size: int) -> None:
        """The size of the KV pool, once that is known."""
        self._pool = num_blocks, block_size

    def check_beams(self, params: SamplingParams, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises InvalidRequestError for a beam search whose beams could not all run at once, or be in the pool at once."""
        width = params.n
        if self._max_num_seqs is not None and width > self._max_num_seqs:
            raise InvalidRequestError(f"a beam search may have at most {self._max_num_seqs} beams here, but n is {width}", param="n")
        if width > self._vocab_size:
            raise InvalidRequestError(f"there are {self._vocab_size} tokens, which cannot make {width} beams", param="n")
        if self._pool is None:
            return
        num_blocks, block_size = self._pool
        needed = width * -(-(num_prompt_tokens + max_tokens) // block_size)
        if needed > num_blocks:
            raise InvalidRequestError(
                f"{width} beams of {num_prompt_tokens} + {max_tokens} tokens need {needed} KV blocks of {block_size} tokens, but there are "
                f"{num_blocks}: lower max_tokens or n",
                param="max_tokens",
            )

    def _limit_output(self, prompt: list[int], params: SamplingParams) -> int:
        """The tokens that may be generated."""
        if not prompt:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", param="prompt")
        room = self._max_model_len - len(prompt)
        if room == 0 and params.max_tokens == 1 and params.prompt_logprobs is not None:
            # Scoring: the one token is made only to have computed the whole prompt, and nothing follows it.
            return 1
        if room < 1:
            raise InvalidRequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, your prompt has {len(prompt)} tokens, "
                "which leaves no room for the output. Please reduce the length of the prompt.",
                param="prompt",
                code="context_length_exceeded",
            )
        if params.max_tokens is None:
            return room
        if params.max_tokens > room:
            raise InvalidRequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, you requested "
                f"{len(prompt) + params.max_tokens} tokens ({len(prompt)} in the prompt, {params.max_tokens} in the completion). "
                "Please reduce the length of the prompt or the completion.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return params.max_tokens


def _check_priority(priority: int) -> None:
    if not -(2**31) <= priority < 2**31:
        raise InvalidRequestError(f"priority must be an integer of 32 bits, but is {priority}", param="priority")

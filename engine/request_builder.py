"""From a prompt and its settings to the sequences that the engine runs: checks, limits and seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf

import msgspec

from engine.best_of import with_ranking
from engine.errors import InvalidRequestError
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams


class RequestBuilder:
    """Checks requests against one model's limits and numbers them in order of arrival."""

    def __init__(self, max_model_len: int, vocab_size: int, seed: int) -> None:
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
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
        for name, token_ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids)):
            for token_id in token_ids:
                if not 0 <= token_id < self._vocab_size:
                    raise InvalidRequestError(f"token id {token_id} is not in the vocabulary of {self._vocab_size} tokens", param=name)
        if not -(2**31) <= priority < 2**31:
            raise InvalidRequestError(f"priority must be an integer of 32 bits, but is {priority}", param="priority")
        self._num_arrived += 1
        params = with_ranking(params)
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

    def _limit_output(self, prompt: list[int], params: SamplingParams) -> int:
        """The tokens that may be generated."""
        if not prompt:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", param="prompt")
        room = self._max_model_len - len(prompt)
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

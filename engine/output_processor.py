"""From the engine's token ids to what a caller reads: text, stop strings, log probabilities, finish reasons.

Runs where the caller is (the API process, or a script that uses `LLM`), so that text never delays a step.
"""

from __future__ import annotations

import msgspec

from engine.best_of import keep_best
from engine.detokenizer import IncrementalDetokenizer
from engine.messages import EngineRequest, SequenceOutput
from engine.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.stop_strings import StopStrings
from engine.tokenizer import Tokenizer


class OutputProcessor:
    """One request's sequences, as they grow. Feed it each SequenceOutput; it returns what is new."""

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, sequences: list[EngineRequest], tokenizer: Tokenizer
    ):
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self._params = params
        self._by_id = {request.request_id: _SequenceState(request, tokenizer) for request in sequences}
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else [None]
        self._prompt_logprobs_given = False
        self._unranked: RequestOutput | None = None  # all so far, where the best sequences are chosen at the end

    @property
    def finished(self) -> bool:
        return all(state.finished for state in self._by_id.values())

    @property
    def unfinished_ids(self) -> list[str]:
        """The engine's ids of the sequences that have not ended."""
        return [sequence_id for sequence_id, state in self._by_id.items() if not state.finished]

    def resumed(self, sequence_id: str) -> EngineRequest:
        """What makes a new engine go on with the sequence from the tokens that it has."""
        request = self._by_id[sequence_id].resumed()
        if request.sample_index == 0 and self._prompt_logprobs is not None:
            if self._prompt_logprobs_given:
                request = msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, prompt_logprobs=None))
            else:
                self._prompt_logprobs = [None]  # a new engine begins with the first again
        return request

    def process(self, output: SequenceOutput) -> tuple[RequestOutput | None, bool]:
        """What is new, if anything, and whether a stop string ended the sequence, so that the engine must be told.

        With best_of above n nothing is, until all sequences have ended.
        """
        state = self._by_id[output.request_id]
        if state.finished:
            return None, False
        if output.prompt_logprobs and state.request.sample_index == 0:
            assert self._prompt_logprobs is not None
            self._prompt_logprobs.extend(output.prompt_logprobs)
        if not output.new_token_ids and output.finish_reason is None:
            return None, False
        completion = state.fail(output) if output.finish_reason == "error" else state.append(output)
        request_output = RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion],
            finished=self.finished,
            num_cached_tokens=output.num_cached_tokens,
            first_scheduled=output.first_scheduled,
        )
        if not self._prompt_logprobs_given and state.request.sample_index == 0:
            request_output.prompt_logprobs = self._prompt_logprobs
            self._prompt_logprobs_given = True
        stopped = state.finished and output.finish_reason is None
        if self._params.num_sequences == self._params.n:
            return request_output, stopped
        self._unranked = request_output if self._unranked is None else merge(self._unranked, request_output)
        return (keep_best(self._unranked, self._params) if self.finished else None), stopped

    def merge(self, older: RequestOutput, newer: RequestOutput) -> RequestOutput:
        return merge(older, newer)


class _SequenceState:
    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        self.request = request
        self.finished = False
        self._token_ids: list[int] = list(request.generated_token_ids)
        params = request.params
        self._detokenizer = (
            IncrementalDetokenizer(tokenizer, params.skip_special_tokens, params.visible_token_ids) if params.detokenize else None
        )
        self._stop_strings = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None

    def resumed(self) -> EngineRequest:
        return msgspec.structs.replace(self.request, generated_token_ids=list(self._token_ids))

    def append(self, output: SequenceOutput) -> CompletionOutput:
        """What the new tokens add. Ends at a stop string; the tokens after it are dropped."""
        completion = CompletionOutput(index=self.request.sample_index, logprobs=None if output.logprobs is None else [])
        last = len(output.new_token_ids) - 1
        for i, token_id in enumerate(output.new_token_ids):
            self._token_ids.append(token_id)
            completion.token_ids.append(token_id)
            if completion.logprobs is not None and output.logprobs is not None:
                completion.logprobs.append(output.logprobs[i])
            ends_here = i == last and output.finish_reason is not None
            stopped_by_token = ends_here and output.finish_reason == "stop"
            text, matched = self._read(token_id, stopped_by_token)
            completion.text += text
            if matched is None and ends_here:
                text, matched = self._flush()
                completion.text += text
            if matched is not None:
                completion.finish_reason, completion.stop_reason = "stop", matched
                break
            if ends_here:
                completion.finish_reason, completion.stop_reason = output.finish_reason, output.stop_reason
        self.finished = completion.finished
        return completion

    def fail(self, output: SequenceOutput) -> CompletionOutput:
        """The end of a sequence that cannot go on."""
        self.finished = True
        text, _ = self._flush()
        return CompletionOutput(index=self.request.sample_index, text=text, finish_reason="error", error=output.error)

    def _read(self, token_id: int, stopped_by_token: bool) -> tuple[str, str | None]:
        """The text that one more token releases, and the stop string that it completes."""
        params = self.request.params
        if self._detokenizer is None or (stopped_by_token and not params.include_stop_str_in_output):
            return "", None  # the token that stops is no part of the text
        return self._check_stop(self._detokenizer.append([token_id]))

    def _flush(self) -> tuple[str, str | None]:
        """The text still held back when the sequence ends."""
        if self._detokenizer is None:
            return "", None
        text, matched = self._check_stop(self._detokenizer.finish())
        if matched is None and self._stop_strings is not None:
            text += self._stop_strings.finish()
        return text, matched

    def _check_stop(self, text: str) -> tuple[str, str | None]:
        if self._stop_strings is None or len(self._token_ids) <= self.request.params.min_tokens:
            return text, None
        result = self._stop_strings.append(text)
        return result.delta_to_send, result.matched


def merge(older: RequestOutput, newer: RequestOutput) -> RequestOutput:
    """Two outputs that a slow reader has not taken, as one."""
    by_index = {completion.index: completion for completion in older.outputs}
    for completion in newer.outputs:
        known = by_index.get(completion.index)
        if known is None:
            by_index[completion.index] = completion
            continue
        known.text += completion.text
        known.token_ids.extend(completion.token_ids)
        if known.logprobs is not None and completion.logprobs is not None:
            known.logprobs.extend(completion.logprobs)
        known.finish_reason, known.stop_reason, known.error = completion.finish_reason, completion.stop_reason, completion.error
    older.outputs = list(by_index.values())
    older.finished = newer.finished
    older.num_cached_tokens = max(older.num_cached_tokens, newer.num_cached_tokens)
    older.prompt_logprobs = older.prompt_logprobs or newer.prompt_logprobs
    older.first_scheduled = older.first_scheduled or newer.first_scheduled
    return older

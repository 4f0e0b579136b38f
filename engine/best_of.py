"""best_of: of the sequences that were generated, the n that the model holds for the most probable."""

from __future__ import annotations

import math

import msgspec

from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams


def with_ranking(params: SamplingParams) -> SamplingParams:
    """What the engine must be asked for: a ranking needs every token's log probability."""
    if params.num_sequences == params.n or params.logprobs is not None:
        return params
    return msgspec.structs.replace(params, logprobs=0)


def keep_best(output: RequestOutput, params: SamplingParams) -> RequestOutput:
    """The whole output of a request with only its n best sequences, best first.

    Best is the highest mean log probability per token; of equals, the one with the lower sample index.
    """
    ranked = sorted(output.outputs, key=lambda completion: (-_mean_logprob(completion), completion.index))
    output.outputs = ranked[: params.n]
    for index, completion in enumerate(output.outputs):
        completion.index = index
        if params.logprobs is None:
            completion.logprobs = None
    return output


def _mean_logprob(completion: CompletionOutput) -> float:
    if completion.finish_reason == "error":
        return -math.inf  # it was not completed, so any that was is better
    assert completion.logprobs
    return sum(entry.chosen.logprob for entry in completion.logprobs) / len(completion.logprobs)

"""What changes a row's logits before a token is drawn: stages in one fixed order, each attached to the sampler only here.

What scales and adds comes first, and what masks comes last, so that no stage gives back a token which another has taken away:

    penalties           repetition_penalty, then frequency_penalty, then presence_penalty
    logit_bias          added
    logits_processors   the caller's own functions, and the operator's by their names
    allowed_token_ids   masks all others
    bad_words           masks the last token of a sequence that has been generated up to it
    min_tokens          masks the tokens that end the sequence
    thinking            masks all but the end of reasoning, once its budget is spent
    structured_outputs  masks the tokens with which the answer could not become what was asked for

Then the token is drawn: temperature, min_p, top_k, top_p (`kernels.ops.Ops.sample`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.grammar.compiler import GrammarCompiler
from engine.logits_processors import LogitsProcessorRegistry
from engine.stages.allowed_tokens import AllowedTokens
from engine.stages.bad_words import BadWords
from engine.stages.grammar import Grammar
from engine.stages.logit_bias import LogitBias
from engine.stages.logits_processors import LogitsProcessors
from engine.stages.min_tokens import MinTokens
from engine.stages.penalties import Penalties
from engine.stages.stage import EarlyStage, LogitsRows, Stage
from engine.stages.thinking_budget import ThinkingBudgets

__all__ = ["EarlyStage", "LogitsRows", "Stage", "build_stages"]


def build_stages(
    token_ids: NDArray[np.int32],
    eos_token_ids: Iterable[int],
    grammars: GrammarCompiler | None = None,
    processors: LogitsProcessorRegistry | None = None,
) -> list[Stage]:
    """All stages in their order. `token_ids` is the worker's table [num_slots, max_len], which a stage may read up to a row's position.

    Without `grammars` no request may have structured_outputs, and without `processors` no named_logits_processors.
    """
    stages: list[Stage] = [
        Penalties(token_ids),
        LogitBias(),
        LogitsProcessors(token_ids, processors or LogitsProcessorRegistry(())),
        AllowedTokens(),
        BadWords(token_ids),
        MinTokens(eos_token_ids),
        ThinkingBudgets(token_ids),
    ]
    return stages if grammars is None else [*stages, Grammar(token_ids, grammars)]

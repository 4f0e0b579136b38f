"""`logprobs` in plain PyTorch, for any device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.sampling import RowLogprobs


def logprobs(logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
    """The contract is that of `kernels.ops.Ops.logprobs`."""
    is_number = logits.amax(-1, keepdim=True).isfinite()  # a NaN is the largest
    logits = torch.where(is_number, logits, 0.0)
    largest = logits.amax(-1, keepdim=True)
    # Integers, as on CUDA the order of a sum may depend on the row's place in memory: up to 2**22 of them do not overflow.
    total = (logits - largest).exp().mul_(2.0**40).to(torch.int64).sum(-1, keepdim=True)
    log_total = (total.double() * 2.0**-40).log().float().masked_fill_(~is_number, torch.nan)

    def values(index: torch.Tensor) -> NDArray[np.float32]:
        return (logits.gather(1, index) - largest - log_total).cpu().numpy()

    index = torch.from_numpy(token_ids).to(logits.device).unsqueeze(1)
    top_ids = _top(logits, num_top)
    top_index = torch.from_numpy(top_ids).to(logits.device, torch.int64)
    top_logits = logits.gather(1, top_index).cpu().numpy()
    places = np.broadcast_to(np.arange(1, top_ids.shape[1] + 1, dtype=np.int32), top_ids.shape)
    is_new = np.ones(top_ids.shape, np.bool_)  # not the equal of the one before
    is_new[:, 1:] = top_logits[:, 1:] != top_logits[:, :-1]
    return RowLogprobs(
        chosen=values(index)[:, 0],
        ranks=((logits > logits.gather(1, index)).sum(-1) + 1).cpu().numpy(),
        top_ids=top_ids,
        top_ranks=np.maximum.accumulate(np.where(is_new, places, 0), axis=-1),
        top_values=values(top_index),
    )


def _top(logits: torch.Tensor, num_top: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tokens of the num_top[r] largest logits of each row, largest first and of equals the smaller id first."""
    most = int(num_top.max(initial=0))
    if most == 0:
        return np.zeros((len(num_top), 0), np.int32)
    largest = logits.topk(most, dim=-1)
    values, ids = largest.values.cpu().numpy(), largest.indices.cpu().numpy()
    top_ids = np.take_along_axis(ids, np.lexsort((ids, -values), axis=-1), -1).astype(np.int32)
    # Which of several equals topk gives at the edge depends on the other rows' k.
    counts = torch.from_numpy(num_top.astype(np.int64)).to(logits.device).unsqueeze(1)
    least = largest.values.gather(1, (counts - 1).clamp(min=0))
    is_crowded = ((logits >= least).sum(-1, keepdim=True) > counts).squeeze(1).cpu().numpy()
    for row in np.flatnonzero(is_crowded & (num_top > 0)).tolist():
        candidates = (logits[row] >= least[row]).nonzero().squeeze(1)
        best = logits[row, candidates].sort(descending=True, stable=True).indices[: num_top[row]]
        top_ids[row, : num_top[row]] = candidates[best].cpu().numpy()
    return top_ids

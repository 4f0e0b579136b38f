"""The one list of operations that models call, each with its contract.

A device picks its set once, at start-up (`load_ops`). A set is an object with the methods of `Ops`:

    kernels.reference.ReferenceOps   plain PyTorch: slow, obviously right, the oracle of every test; any device
    kernels.cpu.CpuOps               C with vector intrinsics, built by the machine's own compiler at first use
    kernels.triton.TritonOps         NVIDIA GPUs (and, for tests, Triton's interpreter on the CPU)

A model's forward pass is written once as calls of these methods and nothing else: it never indexes, reshapes or adds a tensor
itself. That lets a set run it operation by operation, capture it as a CUDA graph, or record it as a plan that one native call
walks.

Shapes: T = num_tokens of the step, S = num_seqs, H = num_heads, K = num_kv_heads, D = head_size. Activations are [T, features], rows
contiguous. The KV cache of one layer is [num_blocks, 2, K, block_size, row]: index 0 of the second dimension holds keys, 1 values; the
block stride is free, the four inner dimensions are contiguous. A row is D numbers, with int8 and their scale (`kernels.kv_cache`).

Batch invariance (sets that declare `batch_invariant`): a row's result has the same bits whatever the other rows are.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.sampling import DrawSettings, RowLogprobs
from kernels.weights import Weight

PackedWeight = Any  # whatever a set's `pack_linear` made: opaque to models


class Ops(Protocol):
    """The operations of one device. Raises ValueError at `pack_*` time for a form that the set cannot compute."""

    name: str
    device: torch.device
    dtype: torch.dtype  # of activations
    batch_invariant: bool
    kv_dtypes: tuple[torch.dtype, ...]  # that the KV cache may have

    def pack_linear(self, weight: Weight, bias: torch.Tensor | None) -> PackedWeight:
        """Bring a weight [out, in] (and its bias [out]) into the form that `linear` and `embedding` read. Done once, at load."""
        ...

    def embedding(self, token_ids: torch.Tensor, table: PackedWeight) -> torch.Tensor:
        """table[token_ids]: [T] int32 -> [T, in_features of the table] activations."""
        ...

    def linear(self, x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
        """x @ weight.T + bias: [T, in] -> [T, out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x**2) + eps) * weight, per row, the mean in float32 (Zhang and Sennrich, 2019)."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """residual += x, in place; returns (rms_norm(residual), residual)."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, with gate and up the halves of each row: [T, 2 * n] -> [T, n]."""
        ...

    def gelu_tanh_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The same with GELU in its tanh form."""
        ...

    def rotary_and_write_kv(
        self,
        qkv: torch.Tensor,
        kv_cache: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: Batch,
        shape: AttentionShape,
        qk_norm: QkNorm | None = None,
    ) -> None:
        """Rotate the q and k of each row of qkv [T, (H + 2K) * D] in place by its position, and store k and v in the cache.

        With `qk_norm` each head of q and k is first replaced by its rms_norm.

        Rotation pairs dimension i with i + rotary_dim / 2 (the half-split form). cos_sin is [max_positions, rotary_dim] float32: the
        cosines of the rotary_dim / 2 frequencies, then their sines, any attention factor multiplied in. Slots that are negative are
        not written. A cache of float8_e4m3fn holds the nearest numbers of that type, the largest (448) for what is beyond.
        """
        ...

    def paged_attention(self, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> torch.Tensor:
        """Causal attention of this step's queries over the whole context of their sequences: -> [T, H * D].

        q is read from the first H * D columns of qkv; keys and values, also those of this step, are read from the cache, block by
        block through `batch.block_tables` (Kwon et al., 2023, section 4.1). The softmax is streamed (Milakov and Gimelshein, 2018), so
        temporary memory does not grow with the context.
        """
        ...

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """x[rows]: [T, n], [R] int32 -> [R, n]."""
        ...

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
        """Copy whole blocks: block pairs[i, 0] of `source` to block pairs[i, 1] of `target`, which may be one tensor.

        Both are [any number of blocks, ...], alike and contiguous inside a block, of one layer or of all; pairs is [P, 2] int64. Nothing
        is written twice, and nothing that is written is read.
        """
        ...

    def sample(self, logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
        """The token of each row of logits [R, vocab_size] float32: -> [R], -1 where the row's largest logit is not finite.

        The filters apply in the order min_p, top_k, top_p, each to what the one before left; then the token is the first at which the
        sum of the weights exp(logit / temperature) so far, in the order of token ids, exceeds the draw times the sum of all. The
        logits are left as they are. Part of no recorded forward pass.
        """
        ...

    def logprobs(self, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
        """log_softmax of each row of logits [R, vocab_size] float32: of token_ids[r], and of the num_top[r] most probable tokens.

        num_top is at most vocab_size. The logits are left as they are. Part of no recorded forward pass.
        """
        ...


@runtime_checkable
class DrawingOps(Ops, Protocol):
    """What a set also has whose device computes while the host goes on: passes that draw their tokens themselves, so that the next one can
    be launched before the host has seen them. Both operations may be part of a recorded pass.
    """

    def fetch_tokens(self, batch: Batch) -> None:
        """Put in the place of each negative batch.token_ids[t] what was drawn last for slot -1 - batch.token_ids[t]."""
        ...

    def draw(self, logits: torch.Tensor, batch: Batch) -> None:
        """`sample` for the first rows of logits [R, vocab_size] in the type of activations, as `batch.draws` says, and into it."""
        ...


# A set may also have `capture(forward, capacity) -> Callable[[Batch], torch.Tensor]`: it runs `forward(ops, batch)` with operations that
# are recorded, and returns what replays them for later batches, whose tensors are views of the buffers in `capacity`. The replay gives
# the rows that the operations give one by one, perhaps with others behind them; its result is valid until the next call. If what is
# returned has a method `prepare()`, that records at once what would else be recorded when it is first wanted.


def load_ops(name: str, device: torch.device, dtype: torch.dtype, num_threads: int | None = None, *, deterministic: bool = False) -> Ops:
    """The operation set called `name`: "reference", "cpu" or "triton"; "auto" picks by the device. `num_threads` is for the CPU.
    `deterministic` asks for batch invariance, which the CPU's always has.

    Raises ValueError for another name, for a set that does not run on `device`, and for one that cannot be deterministic.
    """
    if name == "auto":
        name = "triton" if device.type == "cuda" else "cpu"
    if name == "reference":
        if deterministic:
            raise ValueError("the reference kernels cannot be deterministic, their products depend on the load: use kernels=cpu or triton")
        from kernels.reference import ReferenceOps

        return ReferenceOps(device, dtype)
    if name == "cpu":
        from kernels.cpu import load_cpu_ops

        ops = load_cpu_ops(device, dtype, num_threads)
        if deterministic and not ops.batch_invariant:
            raise ValueError("the reference kernels that stand in for the CPU's cannot be deterministic: install gcc or clang")
        return ops
    if name == "triton":
        from kernels.triton import TritonOps

        return TritonOps(device, dtype, deterministic=deterministic)
    raise ValueError(f"there is no kernel set called {name!r}: use auto, reference, cpu or triton")

"""The operations on NVIDIA GPUs, in Triton (Tillet et al., 2019). One kernel per file, with the function that launches it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.sampling import DrawSettings, RowLogprobs
from kernels.triton.activation import gelu_tanh_and_mul, silu_and_mul
from kernels.triton.attention import PagedAttention
from kernels.triton.blocks import copy_blocks
from kernels.triton.graphs import CudaRecorder, DecodeGraphs, repeat_eagerly
from kernels.triton.interpreter import mend_interpreter
from kernels.triton.linear import PackedLinear, has_fp8, pack_linear
from kernels.triton.norm import add_rms_norm, rms_norm
from kernels.triton.rotary import rotary_and_write_kv
from kernels.triton.sampling import draw, sample
from kernels.triton.token_logprobs import logprobs
from kernels.triton.tokens import fetch_tokens
from kernels.weights import Weight

if triton.knobs.runtime.interpret:
    mend_interpreter()


class TritonOps:
    """The contracts of `kernels.ops.DrawingOps` on a GPU; on CPU tensors too when Triton interprets (TRITON_INTERPRET=1), for tests.

    No operation of a forward pass reads a tensor back to the host or allocates anything but its result, so it can be captured as a CUDA
    graph. The kernels are batch invariant, but dense products are cuBLAS's, which are not, unless `deterministic` asks
    for Triton's in their place, and for attention that multiplies with one instruction. Raises ValueError for a device that Triton
    cannot compute on.
    """

    name = "triton"

    def __init__(self, device: torch.device, dtype: torch.dtype, *, deterministic: bool = False) -> None:
        if device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise ValueError(f"the triton kernels need an NVIDIA GPU, but the device is {device.type!r}: use kernels=auto, or device=cuda")
        if triton.knobs.runtime.interpret and dtype == torch.bfloat16:
            raise ValueError("Triton's interpreter cannot multiply bfloat16 matrices: use dtype=float32 or float16")
        self.device = device
        self.dtype = dtype
        self.batch_invariant = deterministic
        self.kv_dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
        if has_fp8(device):
            self.kv_dtypes += (torch.float8_e4m3fn,)
        self._attention = PagedAttention(device, one_instruction=deterministic)

    def capture(self, forward: Callable[[TritonOps, Batch], torch.Tensor], capacity: Batch) -> DecodeGraphs:
        """Decodes as CUDA graphs, recorded now; other batches operation by operation."""
        record = CudaRecorder(self.device) if self.device.type == "cuda" else repeat_eagerly
        return DecodeGraphs(partial(forward, self), capacity, record)

    def pack_linear(self, weight: Weight, bias: torch.Tensor | None) -> PackedLinear:
        return pack_linear(weight, bias, self.device, self.dtype, deterministic=self.batch_invariant)

    def embedding(self, token_ids: torch.Tensor, table: PackedLinear) -> torch.Tensor:
        return table.lookup(token_ids)

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        return weight.multiply(x)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(gate_up)

    def gelu_tanh_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gelu_tanh_and_mul(gate_up)

    def rotary_and_write_kv(
        self,
        qkv: torch.Tensor,
        kv_cache: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: Batch,
        shape: AttentionShape,
        qk_norm: QkNorm | None = None,
    ) -> None:
        rotary_and_write_kv(qkv, kv_cache, cos_sin, batch.positions, batch.slot_mapping, shape, qk_norm)

    def paged_attention(self, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> torch.Tensor:
        return self._attention(qkv, kv_cache, batch, shape)

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows)

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
        copy_blocks(source, target, pairs)

    def sample(self, logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
        return sample(logits, settings)

    def fetch_tokens(self, batch: Batch) -> None:
        assert batch.draws is not None
        fetch_tokens(batch.token_ids, batch.draws.last_token_ids)

    def draw(self, logits: torch.Tensor, batch: Batch) -> None:
        assert batch.draws is not None
        draw(logits, batch.draws)

    def logprobs(self, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
        return logprobs(logits, token_ids, num_top)

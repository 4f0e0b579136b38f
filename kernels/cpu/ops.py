"""The operations, one native call each. `kernels.cpu.plan` records the same calls and replays them as one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.cpu import structs
from kernels.cpu.sampling import SampleCall, logprobs
from kernels.cpu.structs import Codes, KvStruct, Step
from kernels.cpu.threads import ThreadPool
from kernels.cpu.weights import PackedLinear, pack
from kernels.kv_cache import row_elements
from kernels.sampling import DrawSettings, RowLogprobs
from kernels.weights import Weight

KV_ELEMENTS = {
    torch.float32: structs.KV_F32,
    torch.float16: structs.KV_F16,
    torch.bfloat16: structs.KV_BF16,
    torch.int8: structs.KV_I8,
}


class CpuOps:
    """`kernels.ops.Ops` in C with vector intrinsics, float32 activations. Batch-invariant bit for bit, also over thread counts.

    Weights of floats are kept in `dtype`; float32 keeps them as they come, which costs no precision.

    A product with quantised weights quantises its activations too, per row and group of 32 (or 16) features: to 8 bits where the
    weights have up to 4, else to 16. Of the few groups that stand out in a row, what 8 bits leave is quantised once more. Products are
    then exact in integers.
    """

    name = "cpu"
    batch_invariant = True
    kv_dtypes = tuple(KV_ELEMENTS)

    def __init__(self, library: ctypes.CDLL, device: torch.device, dtype: torch.dtype, num_threads: int | None = None) -> None:
        if device.type != "cpu":
            raise ValueError(f"the CPU kernels do not run on {device}")
        self.device = device
        self.dtype = torch.float32
        self._weight_dtype = None if dtype == torch.float32 else dtype
        self.pool = ThreadPool(library, num_threads)
        self._partials: dict[tuple[int, int, int], torch.Tensor] = {}
        self._sample_call: SampleCall | None = None  # the latest: a caller often has the same settings again

    def capture(
        self, forward: Callable[[Any, Batch], Any], capacity: Batch, num_logits: int | None = None
    ) -> Callable[[Batch], torch.Tensor]:
        """Record `forward(ops, batch) -> logits` once, as a plan that runs a whole step in one native call.

        `capacity` holds the full-size buffers; a later batch has at most as many tokens, and at most `num_logits` logits indices (None:
        as many as `capacity` has). The returned function gives a view of the plan's own memory, valid until its next call, with the
        bits that the operations give one by one.
        """
        from kernels.cpu.plan import record

        return record(self, forward, capacity, capacity.logits_indices.shape[0] if num_logits is None else num_logits)

    def pack_linear(self, weight: Weight, bias: torch.Tensor | None) -> PackedLinear:
        return pack(weight, bias, self.pool, self._weight_dtype)

    def embedding(self, token_ids: torch.Tensor, table: PackedLinear) -> torch.Tensor:
        self._check_indices("token_ids", token_ids)
        out = self._new_rows(token_ids, table.in_features)
        self._emit(structs.EmbeddingArgs, Step(num_tokens=token_ids.shape[0], token_ids=token_ids.data_ptr()), table=table, out=out)
        return out

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        self._check_rows(x, weight.in_features)
        out = self._new_rows(x, weight.out_features)
        source = {"codes": self._quantize(x, weight)} if weight.code_bytes else {"x": x}
        self._emit(structs.LinearArgs, self._step_of(x), weight=weight, out=out, rows=self._rows(x), **source)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._norm(x, None, weight, eps)

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        return self._norm(x, residual, weight, eps), residual

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._activate(gate_up, structs.SILU)

    def gelu_tanh_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._activate(gate_up, structs.GELU_TANH)

    def rotary_and_write_kv(
        self,
        qkv: torch.Tensor,
        kv_cache: torch.Tensor,
        cos_sin: torch.Tensor,
        batch: Batch,
        shape: AttentionShape,
        qk_norm: QkNorm | None = None,
    ) -> None:
        self._check_batch(batch)
        self._check_rows(qkv, shape.qkv_size)
        kv = kv_struct(kv_cache, shape)
        if cos_sin.dtype != torch.float32 or cos_sin.stride(1) != 1 or cos_sin.shape[1] < kv.rotary_dim:
            raise ValueError(f"cos_sin must be float32 rows of at least {kv.rotary_dim}, got {cos_sin.dtype} {tuple(cos_sin.shape)}")
        norms = {} if qk_norm is None else {"q_norm": qk_norm.q, "k_norm": qk_norm.k, "norm_eps": qk_norm.eps}
        step = fill_step(Step(), batch)
        self._emit(structs.RotaryArgs, step, kv=kv, cache=kv_cache, qkv=qkv, cos_sin=cos_sin, cos_sin_stride=cos_sin.stride(0), **norms)

    def paged_attention(self, qkv: torch.Tensor, kv_cache: torch.Tensor, batch: Batch, shape: AttentionShape) -> torch.Tensor:
        self._check_batch(batch)
        self._check_rows(qkv, shape.qkv_size)
        kv = kv_struct(kv_cache, shape)
        out = self._new_rows(qkv, shape.q_size)
        step = fill_step(Step(), batch)
        self._emit(structs.AttentionArgs, step, kv=kv, cache=kv_cache, qkv=qkv, out=out, partials=self._partials_for(kv))
        return out

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self._check_indices("rows", rows)
        self._check_rows(x, x.shape[1])
        out = self._new_rows(rows, x.shape[1])
        self._emit(structs.GatherArgs, Step(num_logits=rows.shape[0]), x=x, indices=rows, out=out, features=x.shape[1])
        return out

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
        if pairs.dtype != torch.int64 or not pairs.is_contiguous():
            raise ValueError("pairs must be contiguous int64")
        size = source.element_size()
        self._emit(
            structs.CopyBlocksArgs,
            Step(),
            source=source,
            target=target,
            pairs=pairs,
            num_pairs=pairs.shape[0],
            source_stride_bytes=source.stride(0) * size,
            target_stride_bytes=target.stride(0) * size,
            block_bytes=source[0].numel() * size,
        )

    def sample(self, logits: torch.Tensor, settings: DrawSettings) -> NDArray[np.int64]:
        if self._sample_call is None or self._sample_call.settings is not settings:
            self._sample_call = SampleCall(settings)
        return self._sample_call.run(self.pool, logits)

    def logprobs(self, logits: torch.Tensor, token_ids: NDArray[np.int64], num_top: NDArray[np.int32]) -> RowLogprobs:
        return logprobs(self.pool, logits, token_ids, num_top)

    # What the recorder does otherwise.

    def _new_rows(self, like: torch.Tensor, features: int) -> torch.Tensor:
        return torch.empty(like.shape[0], features, dtype=torch.float32)

    def _rows(self, x: torch.Tensor) -> int:
        return structs.ROWS_TOKENS

    def _step_of(self, x: torch.Tensor) -> Step:
        return Step(num_tokens=x.shape[0])

    def _quantize(self, x: torch.Tensor, weight: PackedLinear) -> Codes:
        codes = codes_struct(weight)
        buffer = torch.empty(x.shape[0] * codes.row_bytes, dtype=torch.uint8)
        codes.data = buffer.data_ptr()
        codes.buffer = buffer  # keeps it alive as long as the struct
        self._emit(structs.QuantizeArgs, self._step_of(x), x=x, codes=codes, rows=structs.ROWS_TOKENS)
        return codes

    def _emit(self, args_type: Any, step: Step, **fields: Any) -> None:
        args = args_type(**{name: native(value) for name, value in fields.items() if args_type.has(name)})
        self.pool.run(args, step)

    # Shared by several operations.

    def _norm(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        features = weight.shape[0]
        self._check_rows(x, features)
        if residual is not None:
            self._check_rows(residual, features)
        weight = weight.to(torch.float32).contiguous()
        out = self._new_rows(x, features)
        self._emit(
            structs.NormArgs,
            self._step_of(x),
            x=x,
            residual=residual,
            weight=weight,
            out=out,
            rows=self._rows(x),
            features=features,
            eps=eps,
        )
        return out

    def _activate(self, gate_up: torch.Tensor, function: int) -> torch.Tensor:
        self._check_rows(gate_up, gate_up.shape[1])
        features = gate_up.shape[1] // 2
        out = self._new_rows(gate_up, features)
        self._emit(
            structs.ActivationArgs,
            self._step_of(gate_up),
            gate_up=gate_up,
            out=out,
            rows=self._rows(gate_up),
            features=features,
            function=function,
        )
        return out

    def _partials_for(self, kv: KvStruct) -> torch.Tensor:
        """Where segments of long contexts meet when they are divided over threads: of a size fixed by the shape."""
        key = (kv.num_heads, kv.num_kv_heads, kv.head_size)
        if key not in self._partials:
            floats = self.pool.library.octavo_attention_partials_floats(ctypes.byref(kv), self.pool.num_threads)
            self._partials[key] = torch.empty(floats, dtype=torch.float32)
        return self._partials[key]

    def _check_batch(self, batch: Batch) -> None:
        self._check_indices("block_tables' first row", batch.block_tables[:1])
        for name in ("positions", "query_start_loc", "seq_lens"):
            self._check_indices(name, getattr(batch, name))
        if batch.slot_mapping.dtype != torch.int64:
            raise ValueError(f"slot_mapping must be int64, got {batch.slot_mapping.dtype}")

    def _check_rows(self, x: torch.Tensor, features: int) -> None:
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != features or not x.is_contiguous():
            raise ValueError(f"expected contiguous float32 rows of {features}, got {x.dtype} {tuple(x.shape)}")

    def _check_indices(self, name: str, indices: torch.Tensor) -> None:
        if indices.dtype != torch.int32 or not indices.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32, got {indices.dtype}")


def native(value: Any) -> Any:
    """What a struct's field holds for a tensor, a weight, a struct or a number."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if isinstance(value, PackedLinear):
        return ctypes.pointer(value.struct)
    return value


def codes_struct(weight: PackedLinear) -> Codes:
    """The form of activations that `weight` multiplies; `data` is left open."""
    groups = weight.in_features // weight.group_size
    row_bytes = weight.in_features * weight.code_bytes + groups * 8
    if weight.code_bytes == structs.CODES_INT8:  # a bit for each group that stands out, and second codes for those
        row_bytes += -(-groups // 32) * 4 + weight.in_features
    return Codes(row_bytes=row_bytes, features=weight.in_features, group_size=weight.group_size, code_bytes=weight.code_bytes)


def kv_struct(kv_cache: torch.Tensor, shape: AttentionShape) -> KvStruct:
    """Raises ValueError for a cache that is not [num_blocks, 2, K, block_size] rows of a type that the kernels read."""
    _, two, num_kv_heads, block_size, row = kv_cache.shape
    if kv_cache.dtype not in KV_ELEMENTS:
        raise ValueError(f"the CPU kernels keep keys and values as float32, float16, bfloat16 or int8, not {kv_cache.dtype}")
    inner = (num_kv_heads * block_size * row, block_size * row, row, 1)
    expected = (2, shape.num_kv_heads, row_elements(shape.head_size, kv_cache.dtype))
    if (two, num_kv_heads, row) != expected or kv_cache.stride()[1:] != inner:
        raise ValueError(f"a KV cache of {tuple(kv_cache.shape)} does not fit {shape}, or is not contiguous inside a block")
    return KvStruct(
        data=kv_cache.data_ptr(),
        block_bytes=kv_cache.stride(0) * kv_cache.element_size(),
        element=KV_ELEMENTS[kv_cache.dtype],
        block_size=block_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        rotary_dim=shape.rotary_dim or shape.head_size,
        sliding_window=shape.sliding_window or 0,
        scale=shape.scale,
    )


def fill_step(step: Step, batch: Batch) -> Step:
    """Write a batch's numbers and addresses into `step`."""
    step.num_tokens = batch.num_tokens
    step.num_seqs = batch.num_seqs
    step.num_logits = batch.logits_indices.shape[0]
    step.max_query_len = batch.max_query_len
    step.max_seq_len = batch.max_seq_len
    step.block_table_stride = batch.block_tables.stride(0)
    step.token_ids = batch.token_ids.data_ptr()
    step.positions = batch.positions.data_ptr()
    step.slot_mapping = batch.slot_mapping.data_ptr()
    step.query_start_loc = batch.query_start_loc.data_ptr()
    step.seq_lens = batch.seq_lens.data_ptr()
    step.block_tables = batch.block_tables.data_ptr()
    step.logits_indices = batch.logits_indices.data_ptr()
    return step

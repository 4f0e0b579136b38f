"""The Triton kernels one by one: whether they agree with plain PyTorch, and how near they come to what the device can do.

A kernel's floor is the bytes that it must move at the measured copy bandwidth, or its multiply-adds at the measured rate of bfloat16
products, whichever takes longer. `loadtest.gpu_check` runs this; sizes are those of Llama 3 8B, or tiny ones for Triton's interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.kv_cache import encode_rows, row_elements
from kernels.reference import ReferenceOps
from kernels.sampling import NUM_WORDS, Draws, DrawSettings, RowLogprobs
from kernels.triton import TritonOps
from kernels.triton.sampling import draw
from kernels.weights import DenseWeight, Fp8Weight, QuantizedWeight

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Sizes:
    """What is measured: of a real model on a GPU, of a toy in the interpreter."""

    hidden: int
    intermediate: int
    vocab_size: int
    shape: AttentionShape
    num_seqs: int  # of the decode
    context: int
    prompt: int  # tokens of the prefill
    rows: tuple[int, ...]  # of the products


REAL = Sizes(4096, 14336, 128256, AttentionShape(32, 8, 128, 128**-0.5), 64, 1024, 8192, (1, 64, 2048))
TOY = Sizes(64, 96, 300, AttentionShape(4, 2, 16, 0.25), 3, 40, 33, (1, 20))


@dataclass(frozen=True)
class Floors:
    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True)
class Case:
    """One kernel on one input."""

    name: str
    run: Callable[[], object]
    check: Callable[[], float]  # the largest difference from the reference, relative to the largest number there
    num_bytes: float
    num_flops: float = 0.0
    tolerance: float = 0.02

    def floor(self, floors: Floors) -> float:
        """Seconds."""
        return max(self.num_bytes / floors.bytes_per_second, self.num_flops / floors.flops_per_second)


def measure_floors(device: torch.device) -> Floors:
    """Copying a large tensor, reads and writes counted; and a product of large bfloat16 matrices by the vendor's library."""
    on_gpu = device.type == "cuda"
    source = torch.zeros(1 << (30 if on_gpu else 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.numel() / seconds_of(lambda: target.copy_(source), device)
    size = 8192 if on_gpu else 128
    matrix = torch.randn(size, size, device=device).to(torch.bfloat16 if on_gpu else torch.float32)
    return Floors(copy, 2 * size**3 / seconds_of(lambda: matrix @ matrix, device))


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Of one call: on a GPU the median of many, with the L2 cache emptied before each; else one look at the clock."""
    if device.type == "cuda":
        return float(triton.testing.do_bench(run, warmup=10, rep=50, return_mode="median")) / 1000
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def cases(device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """Every kernel that a step runs."""
    # The interpreter multiplies no bfloat16.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    generator = torch.Generator(device).manual_seed(0)

    def noise(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)

    yield from attention_cases(device, dtype, sizes, noise)
    yield from row_cases(device, dtype, sizes, noise)
    yield from product_cases(device, dtype, sizes, noise)
    yield from sampling_cases(device, sizes, noise)


Noise = Callable[..., torch.Tensor]


def attention_cases(device: torch.device, dtype: torch.dtype, sizes: Sizes, noise: Noise) -> Iterator[Case]:
    ops, reference, shape = TritonOps(device, dtype), ReferenceOps(device, dtype), sizes.shape
    names = {dtype: "16 bits", torch.float8_e4m3fn: "8 bits", torch.int8: "int8"}
    for kv_dtype in (kv_dtype for kv_dtype in names if kv_dtype in ops.kv_dtypes):
        name = names[kv_dtype]
        batch, cache = filled_cache(sizes.num_seqs, sizes.context, 1, shape, kv_dtype, noise)
        qkv = noise(batch.num_tokens, shape.qkv_size)
        row_bytes = row_elements(shape.head_size, kv_dtype) * kv_dtype.itemsize
        kv_bytes = 2 * sizes.num_seqs * sizes.context * shape.num_kv_heads * row_bytes
        yield Case(
            f"decode attention, KV of {name}",
            lambda qkv=qkv, cache=cache, batch=batch: ops.paged_attention(qkv, cache, batch, shape),
            lambda qkv=qkv, cache=cache, batch=batch: difference(
                ops.paged_attention(qkv, cache, batch, shape), reference.paged_attention(qkv, cache, batch, shape)
            ),
            kv_bytes,
        )
    batch, cache = filled_cache(1, sizes.prompt, sizes.prompt, shape, dtype, noise)
    prompt = noise(batch.num_tokens, shape.qkv_size)
    few, few_cache = filled_cache(1, min(512, sizes.prompt), min(300, sizes.prompt), shape, dtype, noise)
    few_qkv = noise(few.num_tokens, shape.qkv_size)
    yield Case(
        "prefill attention",
        lambda: ops.paged_attention(prompt, cache, batch, shape),
        lambda: difference(ops.paged_attention(few_qkv, few_cache, few, shape), reference.paged_attention(few_qkv, few_cache, few, shape)),
        2 * prompt.nbytes,
        num_flops=2 * sizes.prompt**2 * shape.q_size,  # half of the square is behind the mask
    )
    angles = torch.rand(sizes.prompt, shape.head_size // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)  # true rotations: repeated in place, they let no number grow
    kv_bytes = 2 * sizes.prompt * shape.num_kv_heads * shape.head_size * dtype.itemsize

    def rotated(one: TritonOps | ReferenceOps, qk_norm: QkNorm | None) -> torch.Tensor:
        written = torch.zeros_like(cache)
        one.rotary_and_write_kv(prompt.clone(), written, cos_sin, batch, shape, qk_norm)
        return written

    ones = torch.ones(shape.head_size, device=device)
    for name, qk_norm in (("rotary", None), ("norms of heads, rotary", QkNorm(ones, ones, 1e-6))):
        yield Case(
            f"{name} and KV write",
            lambda qk_norm=qk_norm: ops.rotary_and_write_kv(prompt, cache, cos_sin, batch, shape, qk_norm),
            lambda qk_norm=qk_norm: difference(rotated(ops, qk_norm), rotated(reference, qk_norm)),
            # q and k are read and written, v is read, k and v are stored; cosines and sines are read.
            2 * prompt.nbytes - kv_bytes / 2 + kv_bytes + cos_sin.nbytes,
        )
    pairs = torch.arange(cache.shape[0] // 2 * 2, device=device).view(-1, 2)

    def copied(one: TritonOps | ReferenceOps) -> torch.Tensor:
        pool = cache.clone()
        one.copy_blocks(pool, pool, pairs)
        return pool

    yield Case(
        "block copies",
        lambda: ops.copy_blocks(cache, cache, pairs),
        lambda: difference(copied(ops), copied(reference)),
        2 * len(pairs) * cache[0].nbytes,
    )


def row_cases(device: torch.device, dtype: torch.dtype, sizes: Sizes, noise: Noise) -> Iterator[Case]:
    ops, reference = TritonOps(device, dtype), ReferenceOps(device, dtype)
    x, residual = noise(sizes.prompt, sizes.hidden), noise(sizes.prompt, sizes.hidden)
    weight, gate_up = noise(sizes.hidden).float(), noise(sizes.prompt, 2 * sizes.intermediate)
    yield Case(
        "addition and norm",
        lambda: ops.add_rms_norm(x, residual, weight, 1e-5),
        lambda: difference(
            ops.add_rms_norm(x, residual.clone(), weight, 1e-5)[0], reference.add_rms_norm(x, residual.clone(), weight, 1e-5)[0]
        ),
        4 * x.nbytes,
    )
    yield Case(
        "gated activation",
        lambda: ops.silu_and_mul(gate_up),
        lambda: difference(ops.silu_and_mul(gate_up), reference.silu_and_mul(gate_up)),
        gate_up.nbytes * 1.5,
    )


def product_cases(device: torch.device, dtype: torch.dtype, sizes: Sizes, noise: Noise) -> Iterator[Case]:
    """The gate and up projection, which has most of a layer's weights."""
    ops, exact = TritonOps(device, dtype), TritonOps(device, dtype, deterministic=True)
    out_features, in_features = 2 * sizes.intermediate, sizes.hidden
    matrix = noise(out_features, in_features)
    forms: dict[str, tuple[TritonOps, DenseWeight | QuantizedWeight | Fp8Weight]] = {"deterministic product": (exact, DenseWeight(matrix))}
    for bits in (4, 8):
        codes = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), matrix.shape, device=device, dtype=torch.int8)
        scales = torch.rand(out_features, in_features // 32, device=device).half().float()
        forms[f"product, weights of {bits} bits"] = ops, QuantizedWeight(codes, scales, None, 32, bits, signed=True)
    if torch.float8_e4m3fn in ops.kv_dtypes:
        forms["product, 8-bit floats"] = ops, Fp8Weight.of(matrix)
    for name, (owner, weight) in forms.items():
        packed = owner.pack_linear(weight, None)
        weight_bytes = out_features * in_features * {"deterministic product": 2, "product, weights of 4 bits": 0.5625}.get(name, 1.0625)
        dense = weight.dequantize().to(dtype)
        for num_rows in sizes.rows:
            x = noise(num_rows, in_features)
            yield Case(
                f"{name}, {num_rows} rows",
                lambda owner=owner, packed=packed, x=x: owner.linear(x, packed),
                lambda owner=owner, packed=packed, x=x, dense=dense: difference(owner.linear(x, packed), x @ dense.T),
                weight_bytes + x.nbytes + num_rows * out_features * dtype.itemsize,
                num_flops=2 * num_rows * in_features * out_features,
                tolerance=0.06 if name.endswith("floats") else 0.02,  # activations are rounded to three bits of mantissa
            )


def draws_of(settings: DrawSettings, num_rows: int, device: torch.device) -> Draws:
    """For a pass that draws a token of every row."""
    words = np.empty((num_rows, NUM_WORDS), np.int64)
    settings.pack(words)
    return Draws(
        counts=torch.tensor([num_rows] * 3, dtype=torch.int32, device=device),
        settings=torch.from_numpy(words).to(device),
        slots=torch.arange(num_rows, dtype=torch.int32, device=device),
        token_ids=torch.zeros(num_rows, dtype=torch.int64, device=device),
        last_token_ids=torch.zeros(num_rows, dtype=torch.int32, device=device),
    )


def drawn(logits: torch.Tensor, draws: Draws) -> NDArray[np.int64]:
    draw(logits, draws)
    return draws.token_ids.cpu().numpy()


def sampling_cases(device: torch.device, sizes: Sizes, noise: Noise) -> Iterator[Case]:
    ops, reference = TritonOps(device, torch.float16), ReferenceOps(device, torch.float32)
    rows = sizes.num_seqs
    of_pass = noise(rows, sizes.vocab_size) * 3
    logits = of_pass.float()
    counters = np.arange(rows, dtype=np.uint64)

    def settings(temperature: float, top_k: int, top_p: float) -> DrawSettings:
        return DrawSettings(
            np.full(rows, temperature, np.float32), np.full(rows, -np.inf, np.float32), np.full(rows, top_k, np.int32),
            np.full(rows, top_p), counters, counters, counters,
        )  # fmt: skip

    for name, one in {
        "greedy": settings(0.0, 0, 1.0),
        "temperature": settings(1.0, 0, 1.0),
        "top-k and top-p": settings(1.0, 50, 0.9),
    }.items():
        draws = draws_of(one, rows, device)
        yield Case(
            f"sampling, {name}",
            lambda draws=draws: draw(of_pass, draws),
            lambda one=one, draws=draws: float((drawn(of_pass, draws) != reference.sample(logits, one)).mean()),
            of_pass.nbytes,
        )
    for num_top in (0, 5, 20):
        wanted = np.zeros(rows, np.int64), np.full(rows, num_top, np.int32)
        yield Case(
            f"log probabilities, {num_top} most probable",
            lambda wanted=wanted: ops.logprobs(logits, *wanted),
            lambda wanted=wanted: logprobs_difference(ops.logprobs(logits, *wanted), reference.logprobs(logits, *wanted)),
            logits.nbytes,
        )


def filled_cache(
    num_seqs: int, context: int, query_len: int, shape: AttentionShape, dtype: torch.dtype, noise: Noise
) -> tuple[Batch, torch.Tensor]:
    """Sequences of one context, each with `query_len` queries, in blocks of random order."""
    per_seq = -(-context // BLOCK_SIZE)
    cache = encode_rows(noise(num_seqs * per_seq, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_size), dtype)
    device = cache.device
    tables = torch.randperm(num_seqs * per_seq, device=device, dtype=torch.int32).view(num_seqs, per_seq)
    positions = torch.arange(context - query_len, context, device=device).repeat(num_seqs)
    owners = torch.arange(num_seqs, device=device).repeat_interleave(query_len)
    slots = tables[owners, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    batch = Batch(
        num_tokens=num_seqs * query_len,
        num_seqs=num_seqs,
        max_query_len=query_len,
        max_seq_len=context,
        token_ids=torch.zeros(num_seqs * query_len, dtype=torch.int32, device=device),
        positions=positions.int(),
        slot_mapping=slots,
        query_start_loc=torch.arange(0, num_seqs * query_len + 1, query_len, dtype=torch.int32, device=device),
        seq_lens=torch.full((num_seqs,), context, dtype=torch.int32, device=device),
        block_tables=tables,
        logits_indices=torch.arange(num_seqs, dtype=torch.int32, device=device),
    )
    return batch, cache


def logprobs_difference(actual: RowLogprobs, expected: RowLogprobs) -> float:
    """The largest of the tokens' own; all of it where the most probable tokens are others."""
    if (actual.top_ids != expected.top_ids).any() or (actual.top_ranks != expected.top_ranks).any():
        return 1.0
    return float(np.abs(actual.chosen - expected.chosen).max())


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative to the largest number that was expected."""
    wanted = expected.float()
    return float((actual.float() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))

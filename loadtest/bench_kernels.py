"""How fast the CPU kernels are: products alone, and whole steps of a small model's shape (random weights, no engine around).

    python -m loadtest.bench_kernels products [--threads N]
    python -m loadtest.bench_kernels steps [--threads N]
    python -m loadtest.bench_kernels attention [--threads N]

Products: multiply-adds per second, and weight bytes per second, of the matrices of SmolLM2-135M (Q4_1, output layer Q8_0). Steps: tokens
per second of decodes at a context of 100 tokens and of a prefill of 512. Each figure is the median of repeats that take turns, with the
best in brackets: on a shared machine differences below a tenth mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from kernels.batch import AttentionShape, Batch
from kernels.cpu import load_cpu_ops
from kernels.cpu.ops import CpuOps
from kernels.weights import DenseWeight, QuantizedWeight, Weight

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY, BLOCK_SIZE = 576, 1536, 30, 49152, 16
SHAPE = AttentionShape(num_heads=9, num_kv_heads=3, head_size=64, scale=0.125)
CONTEXT, PROMPT = 100, 512


def random_weight(form: str, out_features: int, in_features: int) -> Weight:
    if form in ("f32", "f16"):
        return DenseWeight(torch.randn(out_features, in_features).mul_(0.05).to(torch.float32 if form == "f32" else torch.float16))
    bits = 4 if form == "q4" else 8
    low = 0 if bits == 4 else -128
    codes = torch.randint(low, low + 2**bits, (out_features, in_features), dtype=torch.int8)
    scales = (torch.rand(out_features, in_features // 32) * 0.01 / 2 ** (bits - 4)).half().float()
    return QuantizedWeight(codes, scales, scales * -7.5 if bits == 4 else None, 32, bits, bits == 8)


def measure(functions: dict[str, Callable[[], object]], repeats: int, seconds: float) -> dict[str, tuple[float, float]]:
    """(median, best) seconds of one call of each function; the functions take turns."""
    counts = {}
    for name, function in functions.items():
        function()
        start = time.perf_counter()
        function()
        counts[name] = max(1, int(seconds / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                function()
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: (statistics.median(values), min(values)) for name, values in times.items()}


def bench_products(ops: CpuOps, repeats: int) -> None:
    print(f"{'product':28} {'rows':>4}  {'GMAC/s median (best)':>22}  {'weights, GB/s':>14}")
    for form, out_features, in_features in (
        ("q4", 2 * INTERMEDIATE, HIDDEN),
        ("q4", HIDDEN, INTERMEDIATE),
        ("q8", VOCABULARY // 8, HIDDEN),
        ("f32", 2 * INTERMEDIATE, HIDDEN),
    ):
        # Several copies, so that one row finds its weights in memory rather than in a cache, as in a model.
        copies = [ops.pack_linear(random_weight(form, out_features, in_features), None) for _ in range(24)]
        num_bytes = copies[0].data.numel() * copies[0].data.element_size()
        functions = {}
        for rows in (1, 8, 64):
            x = torch.randn(rows, in_features)
            functions[str(rows)] = lambda x=x, copies=copies: [ops.linear(x, weight) for weight in copies]
        for rows, (median, best) in measure(functions, repeats, 0.05).items():
            macs = int(rows) * out_features * in_features * len(copies) / 1e9
            name = f"{form} {out_features} x {in_features}"
            print(f"{name:28} {rows:>4}  {macs / median:>13.1f} ({macs / best:5.1f})  {num_bytes * len(copies) / median / 1e9:>14.1f}")


class SmolShapes:
    """A forward pass of SmolLM2-135M's shape."""

    def __init__(self, ops: CpuOps, num_blocks: int, dense: bool) -> None:
        q4, q8 = ("f32", "f32") if dense else ("q4", "q8")

        def linear(out_features: int, in_features: int) -> object:
            return ops.pack_linear(random_weight(q4, out_features, in_features), None)

        self.norm = torch.ones(HIDDEN)
        self.layers = [
            (
                linear(SHAPE.qkv_size, HIDDEN),
                linear(HIDDEN, SHAPE.q_size),
                linear(2 * INTERMEDIATE, HIDDEN),
                linear(HIDDEN, INTERMEDIATE),
            )
            for _ in range(LAYERS)
        ]
        self.table = ops.pack_linear(random_weight(q8, VOCABULARY, HIDDEN), None)
        self.cos_sin = torch.rand(2048, SHAPE.head_size)
        self.kv = kv_pool(num_blocks)

    def forward(self, ops: CpuOps, batch: Batch) -> torch.Tensor:
        hidden = residual = ops.embedding(batch.token_ids, self.table)
        x = ops.rms_norm(hidden, self.norm, 1e-5)
        for index, (qkv_weight, o_weight, gate_up_weight, down_weight) in enumerate(self.layers):
            qkv = ops.linear(x, qkv_weight)
            ops.rotary_and_write_kv(qkv, self.kv[:, index], self.cos_sin, batch, SHAPE)
            attended = ops.paged_attention(qkv, self.kv[:, index], batch, SHAPE)
            x, residual = ops.add_rms_norm(ops.linear(attended, o_weight), residual, self.norm, 1e-5)
            hidden = ops.linear(ops.silu_and_mul(ops.linear(x, gate_up_weight)), down_weight)
            x, residual = ops.add_rms_norm(hidden, residual, self.norm, 1e-5)
        return ops.linear(ops.gather_rows(x, batch.logits_indices), self.table)


def kv_pool(num_blocks: int) -> torch.Tensor:
    """Zeros, as the engine allocates them: a block's layers side by side."""
    shape = (num_blocks, LAYERS, 2, SHAPE.num_kv_heads, BLOCK_SIZE, SHAPE.head_size)
    return torch.from_numpy(np.zeros(shape, np.float16)).fill_(0.5)


def step_of(num_seqs: int, query_len: int, context: int) -> Batch:
    """`num_seqs` sequences with `query_len` new tokens each after `context` tokens."""
    length = context + query_len
    columns = -(-length // BLOCK_SIZE)
    tables = torch.randperm(num_seqs * columns).view(num_seqs, columns)
    positions = torch.arange(context, length).repeat(num_seqs)
    seqs = torch.arange(num_seqs).repeat_interleave(query_len)
    slots = tables[seqs, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    tokens = num_seqs * query_len
    return Batch(
        num_tokens=tokens,
        num_seqs=num_seqs,
        max_query_len=query_len,
        max_seq_len=length,
        token_ids=torch.randint(0, VOCABULARY, (tokens,), dtype=torch.int32),
        positions=positions.to(torch.int32),
        slot_mapping=slots,
        query_start_loc=torch.arange(0, tokens + 1, query_len, dtype=torch.int32),
        seq_lens=torch.full((num_seqs,), length, dtype=torch.int32),
        block_tables=tables.to(torch.int32),
        logits_indices=torch.arange(query_len - 1, tokens, query_len, dtype=torch.int32),
    )


def bench_steps(ops: CpuOps, repeats: int, dense: bool) -> None:
    model = SmolShapes(ops, 64 * -(-(CONTEXT + 1) // BLOCK_SIZE), dense)
    steps = {f"decode {n}": step_of(n, 1, CONTEXT) for n in (1, 8, 16, 32, 64)}
    steps[f"prefill {PROMPT}"] = step_of(1, PROMPT, 0)
    plan = ops.capture(model.forward, step_of(1, PROMPT, 0), 64)
    functions = {name: (lambda batch=batch: plan(batch)) for name, batch in steps.items()}
    print(f"{'step':14} {'ms median (best)':>20}  {'tokens/s median (best)':>24}")
    for name, (median, best) in measure(functions, repeats, 0.15).items():
        tokens = steps[name].num_tokens
        print(f"{name:14} {median * 1e3:>11.2f} ({best * 1e3:6.2f})  {tokens / median:>15.0f} ({tokens / best:6.0f})")


def attention_only(ops: CpuOps, kv: torch.Tensor) -> Callable[[CpuOps, Batch], torch.Tensor]:
    """A forward pass that does nothing but the attention of all layers."""
    table = ops.pack_linear(DenseWeight(torch.randn(VOCABULARY, SHAPE.qkv_size)), None)

    def forward(recorder: CpuOps, batch: Batch) -> torch.Tensor:
        qkv = recorder.embedding(batch.token_ids, table)
        for layer in range(LAYERS):
            out = recorder.paged_attention(qkv, kv[:, layer], batch, SHAPE)
        return out

    return forward


def bench_attention(ops: CpuOps, repeats: int) -> None:
    print(f"{'attention':26} {'us median (best)':>18}  {'KV, GB/s':>9}")
    cases = {
        "64 decodes at 100": (64, 1, 100),
        "1 decode at 4,096": (1, 1, 4096),
        "prefill 512": (1, 512, 0),
        "8 decodes at 1,024": (8, 1, 1024),
    }
    functions, num_bytes = {}, {}
    for name, (num_seqs, query_len, context) in cases.items():
        batch = step_of(num_seqs, query_len, context)
        plan = ops.capture(attention_only(ops, kv_pool(batch.block_tables.numel())), batch, batch.num_tokens)
        functions[name] = lambda plan=plan, batch=batch: plan(batch)
        num_bytes[name] = num_seqs * (context + query_len) * 2 * SHAPE.num_kv_heads * SHAPE.head_size * 2
    for name, (median, best) in measure(functions, repeats, 0.05).items():
        each = median / LAYERS
        print(f"{name:26} {each * 1e6:>9.1f} ({best / LAYERS * 1e6:6.1f})  {num_bytes[name] / each / 1e9:>9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["products", "steps", "attention"])
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dense", action="store_true", help="float32 weights in the steps")
    options = parser.parse_args()
    ops = load_cpu_ops(torch.device("cpu"), torch.float32, options.threads)
    if not isinstance(ops, CpuOps):
        raise SystemExit("the CPU kernels are not available here")
    if options.what == "products":
        bench_products(ops, options.repeats)
    elif options.what == "steps":
        bench_steps(ops, options.repeats, options.dense)
    else:
        bench_attention(ops, options.repeats)


if __name__ == "__main__":
    main()

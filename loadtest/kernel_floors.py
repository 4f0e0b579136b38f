"""Every CPU kernel against what one core of this machine can do: `python -m loadtest.kernel_floors [--repeats 15]`.

For each kernel: the bytes that it must move, the multiply-adds that it must do, its time, and that of the floor, which is the longer of the
two: bytes at the speed at which this core reads (from memory for weights and for long contexts, from its own cache for activations), or
multiply-adds at the speed of the widest instruction for such numbers (floors.c). One thread, and its own processor time, so that a busy
machine disturbs little; medians of repeats in which kernels and floors take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.batch import Batch
from kernels.cpu import build, load_cpu_ops
from kernels.cpu.ops import CpuOps
from kernels.kv_cache import row_elements
from kernels.sampling import DrawSettings
from kernels.weights import DenseWeight
from loadtest.bench_kernels import HIDDEN, INTERMEDIATE, SHAPE, VOCABULARY, random_weight, step_of

MEMORY_BYTES, CACHE_BYTES, TURNS = 96 << 20, 128 << 10, 200_000
SECONDS = 0.03  # of one kernel in one repeat


@dataclass
class Case:
    """A kernel at one size."""

    name: str
    call: Callable[[], object]
    num_bytes: int  # that must be read or written by one run of the kernel
    source: str = "cache"  # where they are: memory or cache
    multiply_adds: int = 0
    kind: str = "f32"  # of the numbers multiplied: f32, int8, int16
    runs: int = 1  # of the kernel in one call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    ops = load_cpu_ops(torch.device("cpu"), torch.float32, 1)
    if not isinstance(ops, CpuOps):
        raise SystemExit("the CPU kernels are not available here")
    cases = [*product_cases(ops), *attention_cases(ops), *row_cases(ops)]
    floors = floor_calls()
    seconds: dict[str, list[float]] = {name: [] for name in [*floors, *(case.name for case in cases)]}
    for _ in range(args.repeats):
        for name, (call, _) in floors.items():
            seconds[name].append(seconds_of(call))
        for case in cases:
            seconds[case.name].append(seconds_of(case.call))
    speed = {name: amount / statistics.median(seconds[name]) for name, (_, amount) in floors.items()}
    print(f"one core reads {speed['memory'] / 1e9:.1f} GB/s from memory and {speed['cache'] / 1e9:.0f} from its cache;")
    rates = ", ".join(f"{speed[kind] / 1e9:.0f} G of {kind}" for kind in ("f32", "int16", "int8"))
    print(f"multiply-adds a second: {rates}")
    print(f"{'kernel':34} {'KB':>8} {'M mul-adds':>11} {'us':>9} {'floor us':>9} {'bound by':>9} {'of the floor':>13}")
    for case in cases:
        moved, computed = case.num_bytes / speed[case.source], case.multiply_adds / speed[case.kind]
        floor, taken = max(moved, computed), statistics.median(seconds[case.name]) / case.runs
        bound = case.source if moved > computed else case.kind
        numbers = f"{case.num_bytes / 1e3:>8.0f} {case.multiply_adds / 1e6:>11.2f} {taken * 1e6:>9.1f} {floor * 1e6:>9.1f}"
        print(f"{case.name:34} {numbers} {bound:>9} {100 * floor / taken:>12.0f}%")


def seconds_of(call: Callable[[], object]) -> float:
    """Processor seconds of one call of a function that may be short."""
    calls, started = 0, time.thread_time()
    while time.thread_time() - started < SECONDS or calls < 2:
        call()
        calls += 1
    return (time.thread_time() - started) / calls


def floor_calls() -> dict[str, tuple[Callable[[], object], float]]:
    """By name: a call, and the bytes or multiply-adds that it does."""
    compiler = build.find_compiler()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "floors.so"
        source = str(Path(__file__).with_name("floors.c"))
        flags = [*build.native_flags(compiler), *build.FLAGS, "-I", str(build.SOURCE_DIR)]
        build.run_compiler([compiler, *flags, "-shared", source, "-o", str(path), "-lm"])
        library = ctypes.CDLL(str(path))
    library.floor_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    for name in ("floor_f32", "floor_int8", "floor_int16"):
        getattr(library, name).argtypes = [ctypes.c_int64]
    memory, cached = torch.ones(MEMORY_BYTES, dtype=torch.uint8), torch.ones(CACHE_BYTES, dtype=torch.uint8)
    turns = TURNS * library.floor_chains()
    return {
        "memory": (lambda: library.floor_read(memory.data_ptr(), MEMORY_BYTES), MEMORY_BYTES),
        "cache": (lambda: [library.floor_read(cached.data_ptr(), CACHE_BYTES) for _ in range(100)], 100 * CACHE_BYTES),
        "f32": (lambda: library.floor_f32(TURNS), 16 * turns),
        "int16": (lambda: library.floor_int16(TURNS), 32 * turns),
        "int8": (lambda: library.floor_int8(TURNS), 64 * turns),
    }


Operation = Callable[[Any, Any, Batch], Any]  # (operations, rows, step) -> rows


def planned(ops: CpuOps, batch: Batch, features: int, operations: list[Operation]) -> Callable[[], object]:
    """A recorded plan that does all operations, one after the other, on the same rows: no Python between them, as in a step."""
    table = ops.pack_linear(DenseWeight(torch.randn(64, features)), None)
    batch.token_ids.remainder_(64)

    def forward(recorder: CpuOps, batch: Batch) -> Any:
        x = recorder.rms_norm(recorder.embedding(batch.token_ids, table), torch.ones(features), 1e-5)
        for operation in operations:
            out = operation(recorder, x, batch)
        return x if out is None else out

    plan = ops.capture(forward, batch, batch.num_tokens)
    return lambda: plan(batch)


def product_cases(ops: CpuOps) -> list[Case]:
    """The largest matrix of SmolLM2-135M's layers, in turn over more copies than any cache holds."""
    cases = []
    for form, kind in (("q4", "int8"), ("q8", "int16"), ("f16", "f32"), ("f32", "f32")):
        out_features, in_features = 2 * INTERMEDIATE, HIDDEN
        weight = random_weight(form, out_features, in_features)
        copies = [ops.pack_linear(weight, None) for _ in range(48 if form == "q4" else 24)]
        num_bytes = copies[0].data.numel() * copies[0].data.element_size()
        operations: list[Operation] = [lambda o, x, _, copy=copy: o.linear(x, copy) for copy in copies]  # type: ignore[misc]
        for rows in (1, 8, 64):
            name = f"product {form}, {rows} row{'s' if rows > 1 else ''}"
            call = planned(ops, step_of(rows, 1, 100), in_features, operations)
            moved = num_bytes + rows * 4 * (in_features + out_features)
            cases.append(Case(name, call, moved, "memory", rows * in_features * out_features, kind, len(copies)))
    return cases


def attention_cases(ops: CpuOps) -> list[Case]:
    """Decodes over contexts that lie in memory, and a prefill."""
    cases = []
    for dtype in (torch.float32, torch.float16, torch.int8):
        name = str(dtype).removeprefix("torch.")
        row_bytes = row_elements(SHAPE.head_size, dtype) * dtype.itemsize
        for label, (num_seqs, query_len, context) in {"decodes 16 x 1,024": (16, 1, 1024), "prefill 512": (1, 512, 0)}.items():
            batch = step_of(num_seqs, query_len, context)
            num_blocks = batch.block_tables.numel()
            shape = (num_blocks, 2, SHAPE.num_kv_heads, 16, row_elements(SHAPE.head_size, dtype))
            caches = [torch.ones(shape, dtype=dtype) for _ in range(2)]
            qkv, turn = torch.randn(batch.num_tokens, SHAPE.qkv_size), iter(caches * 100_000)
            seen = num_seqs * (query_len * context + query_len * (query_len + 1) // 2)  # pairs of a query and a key
            num_bytes = num_seqs * (context + query_len) * 2 * SHAPE.num_kv_heads * row_bytes
            call = lambda qkv=qkv, turn=turn, batch=batch: ops.paged_attention(qkv, next(turn), batch, SHAPE)  # noqa: E731
            cases.append(Case(f"attention {name}, {label}", call, num_bytes, "memory", 2 * seen * SHAPE.num_heads * SHAPE.head_size))
    return cases


def row_cases(ops: CpuOps) -> list[Case]:
    """What runs over rows of activations that the core's own cache holds, and the sampler."""
    rows, runs = 16, 100
    weight, logits = torch.ones(HIDDEN), torch.randn(rows, VOCABULARY)
    batch = step_of(rows, 1, 100)
    cache = torch.zeros(batch.block_tables.numel(), 2, SHAPE.num_kv_heads, 16, SHAPE.head_size, dtype=torch.float16)
    cos_sin = torch.rand(2048, SHAPE.head_size)
    table = ops.pack_linear(random_weight("q8", 64, HIDDEN), None)

    def of_rows(name: str, features: int, num_bytes: int, operation: Operation) -> Case:
        return Case(f"{name}, {rows} rows", planned(ops, batch, features, [operation] * runs), rows * num_bytes, runs=runs)

    def rotate(o: CpuOps, x: Any, step: Batch) -> None:
        o.rotary_and_write_kv(x, cache, cos_sin, step, SHAPE)

    return [
        of_rows("norm", HIDDEN, 2 * 4 * HIDDEN, lambda o, x, _: o.rms_norm(x, weight, 1e-5)),
        of_rows("silu and mul", 2 * INTERMEDIATE, 3 * 4 * INTERMEDIATE, lambda o, x, _: o.silu_and_mul(x)),
        of_rows("rotary and KV write", SHAPE.qkv_size, 2 * 4 * SHAPE.qkv_size, rotate),
        of_rows("embedding q8", HIDDEN, 5 * HIDDEN, lambda o, _, step: o.embedding(step.token_ids, table)),
        Case(f"greedy, {rows} rows", lambda: ops.sample(logits, draw_settings(rows, 0.0, 1.0)), 4 * logits.numel(), "memory"),
        Case(f"draw, {rows} rows", lambda: ops.sample(logits, draw_settings(rows, 1.0, 1.0)), 4 * logits.numel(), "memory"),
        Case(f"draw with top_p, {rows} rows", lambda: ops.sample(logits, draw_settings(rows, 1.0, 0.9)), 4 * logits.numel(), "memory"),
    ]


def draw_settings(rows: int, temperature: float, top_p: float) -> DrawSettings:
    return DrawSettings(
        temperature=np.full(rows, temperature, np.float32),
        log_min_p=np.full(rows, -np.inf, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.full(rows, top_p, np.float64),
        seeds=np.arange(rows, dtype=np.uint64),
        sample_indices=np.zeros(rows, np.uint64),
        positions=np.zeros(rows, np.uint64),
    )


if __name__ == "__main__":
    main()

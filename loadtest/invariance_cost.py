"""What batch invariance costs in products: `python -m loadtest.invariance_cost` (docs/determinism.md).

The CPU kernels have one way to multiply, with no faster one beside it. So this compares it with PyTorch's, on float32 matrices of the
default model's shapes, and tells of both whether the first row's bits change with the number of rows. The two take turns, and of each the
best time counts: on a shared machine the others are somebody else's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from kernels.cpu import load_cpu_ops
from kernels.weights import DenseWeight

MATRICES = {"qkv": (960, 576), "gate and up": (3072, 576), "down": (576, 1536), "output layer": (49152, 576)}  # [out, in]
NUM_ROWS = (1, 8, 64, 256)


def _seconds(call: Callable[[], torch.Tensor], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    ops = load_cpu_ops(torch.device("cpu"), torch.float32, args.threads)
    print(
        "time of the kernel : time of PyTorch\n\n| matrix | "
        + " | ".join(f"{n} rows" for n in NUM_ROWS)
        + " | bits of a row, kernel | PyTorch |"
    )
    print("| " + "--- | " * (len(NUM_ROWS) + 3))
    for name, shape in MATRICES.items():
        weight, x = torch.randn(shape) * 0.05, torch.randn(max(NUM_ROWS), shape[1])
        packed = ops.pack_linear(DenseWeight(weight), None)
        cells, first_rows = [], ([], [])
        for num_rows in NUM_ROWS:
            rows = x[:num_rows].contiguous()
            calls = (partial(ops.linear, rows, packed), partial(F.linear, rows, weight))
            for call, kept in zip(calls, first_rows, strict=True):
                kept.append(call()[0].clone())
            repeats = max(1, 20_000_000 // (num_rows * weight.numel()))
            kernel, pytorch = zip(*([_seconds(call, repeats) for call in calls] for _ in range(args.rounds)), strict=True)
            cells.append(f"{min(kernel) / min(pytorch):.2f}")
        cells += ["equal" if all(torch.equal(row, kept[0]) for row in kept) else "differ" for kept in first_rows]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

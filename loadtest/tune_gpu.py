"""Finds the best tiles of the quantised products on the GPU at hand, and enters them in `kernels/triton/tuning.json`.

    python -m loadtest.tune_gpu [--seconds 240] [--table FILE]

Every candidate multiplies the weights of a Llama 3 8B layer with as many rows as a class is for; the least sum of times wins. For the class
"fixed", which serves any number of rows, times of several numbers are added as ratios to the best. Without a GPU the search runs over toy
weights in Triton's interpreter, which shows no more than that it runs.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
from rich.console import Console

from kernels.triton.fp8_matmul import fp8_matmul
from kernels.triton.linear import has_fp8
from kernels.triton.quantized_matmul import pack_grouped, quantized_matmul
from kernels.triton.tuning import FIXED, TABLE, Tiles, row_class, write_entry
from kernels.weights import Fp8Weight, QuantizedWeight
from loadtest.gpu_kernels import seconds_of

WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
TOY_WEIGHTS = ((48, 64),)
ROWS = {"rows_16": (1, 16), "rows_64": (64,), "rows_many": (512, 2048), FIXED: (1, 64, 512)}
HEIGHTS = {"rows_16": (16,), "rows_64": (32, 64), "rows_many": (64, 128), FIXED: (16, 64)}
Multiply = Callable[[torch.Tensor, Tiles], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="for the whole search; what is not tried by then is not tried")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    key = "sm_{}{}".format(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else "any"
    kernels = {"quantized_matmul": grouped_products, "fp8_matmul": fp8_products}
    if not has_fp8(device):
        del kernels["fp8_matmul"]
    searches = list(itertools.product(kernels, ROWS))
    found: dict[str, dict[str, Tiles]] = {kernel: {} for kernel in kernels}
    deadline = time.monotonic() + args.seconds
    for i, (kernel, name) in enumerate(searches):
        share = (deadline - time.monotonic()) / (len(searches) - i)
        found[kernel][name] = best_tiles(kernels[kernel](device), name, device, share)
        Console().print(f"{kernel}, {name}: {found[kernel][name]}")
    for kernel, classes in found.items():
        write_entry(args.table, kernel, key, classes)


def best_tiles(products: list[tuple[int, Multiply]], name: str, device: torch.device, seconds: float) -> Tiles:
    """The candidate with the least time, of those that there was time for; one that the device has no room for is passed over."""
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float16
    rows = ROWS[name] if on_gpu else ROWS[name][:1]
    inputs = [(torch.randn(num_rows, depth, device=device).to(dtype), multiply) for num_rows in rows for depth, multiply in products]
    assert name == FIXED or all(row_class(num_rows) == name for num_rows in rows)
    times: dict[Tiles, list[float]] = {}
    deadline = time.monotonic() + seconds
    for tiles in candidates(name):
        if times and time.monotonic() > deadline:
            break
        try:
            times[tiles] = [seconds_of(lambda x=x, multiply=multiply, tiles=tiles: multiply(x, tiles), device) for x, multiply in inputs]
        except triton.runtime.errors.OutOfResources:
            continue
    best = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda tiles: sum(one / least for one, least in zip(times[tiles], best, strict=True)))


def candidates(name: str) -> Iterator[Tiles]:
    """Those that are most likely good first."""
    for stages, columns, warps, height in itertools.product((4, 6, 3, 8, 2), (64, 128, 32), (4, 8), HEIGHTS[name]):
        if columns * height >= 16 * 32 * warps // 4:
            yield Tiles(height, columns, warps, stages)


def grouped_products(device: torch.device) -> list[tuple[int, Multiply]]:
    """Weights of 4 bits in groups of 32, each with its depth."""
    products: list[tuple[int, Multiply]] = []
    for out_features, in_features in WEIGHTS if device.type == "cuda" else TOY_WEIGHTS:
        codes = torch.randint(0, 16, (out_features, in_features), dtype=torch.int8, device=device)
        scales = torch.rand(out_features, in_features // 32, device=device).half().float()
        packed = pack_grouped(QuantizedWeight(codes, scales, -8 * scales, 32, 4, signed=False), device, torch.bfloat16)
        assert packed is not None
        products.append((in_features, lambda x, tiles, packed=packed: quantized_matmul(x, packed, None, tiles=tiles)))
    return products


def fp8_products(device: torch.device) -> list[tuple[int, Multiply]]:
    products: list[tuple[int, Multiply]] = []
    for out_features, in_features in WEIGHTS if device.type == "cuda" else TOY_WEIGHTS:
        weight = Fp8Weight.of(torch.randn(out_features, in_features, device=device))
        products.append((in_features, lambda x, tiles, weight=weight: fp8_matmul(x, weight.codes, weight.scales, None, tiles=tiles)))
    return products


if __name__ == "__main__":
    main()

"""Runs what a server would run on a GPU, without one, and prints what became of each kernel as lines of JSON.

A program of its own because in the tests' process Triton interprets. Whole forward passes of models of real shapes, on tensors without
memory, meet a driver of no GPU (fake_gpu.py): Triton specialises and compiles each kernel for exactly what it is launched with.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from fake_gpu import FakeDriver

from engine.batch_buffers import BatchBuffers, SlotTables, StepArrays
from engine.cache_engine import block_shape
from engine.layers import parameters
from engine.loader.dummy import weight_shapes
from engine.model_config import ModelConfig, RopeConfig
from engine.models import build_model
from kernels import weights as kernels_weights
from kernels.batch import Batch
from kernels.sampling import DrawSettings
from kernels.triton import TritonOps, fp8_matmul, quantized_matmul, tuning
from kernels.weights import DenseWeight, QuantizedWeight, Weight

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
META = torch.device("meta")
# Tensor cores (sm_80, sm_90; and with 8-bit floats sm_89, sm_90), asynchronous copies to shared memory.
INSTRUCTIONS = ("HMMA", "HGMMA", "QMMA", "QGMMA", "LDGSTS")
ROW_CLASSES = (8, 64, 512)  # a number of rows for each class of `kernels.triton.tuning`
EIGHT_BIT_ONLY = (89,)  # the first with 8-bit floats, and with less shared memory: only what reads them, and other quantised products
TUNED = tuning.read_table(tuning.TABLE)
TABLE_ROW = "quantized_matmul"
FP8 = "float8_e4m3fn"
NEWEST_ONLY = ("smollm2",)  # models that are compiled for the last architecture alone, for the time that it takes

# One vocabulary for all, lest sampling be compiled for each.
LLAMA_3_8B = ModelConfig("LlamaForCausalLM", 128256, 4096, 14336, 32, 32, 8, 128, 1e-5, 8192, RopeConfig(500000.0, 128))
MISTRAL_7B = replace(LLAMA_3_8B, architecture="MistralForCausalLM", sliding_window=4096)
SMOLLM2_135M = ModelConfig(
    "LlamaForCausalLM", 128256, 576, 1536, 30, 9, 3, 64, 1e-5, 8192, RopeConfig(100000.0, 64), tie_word_embeddings=True
)  # fmt: skip
# Attention is compiled once for both Llama and Qwen, whose shapes of it are the same.
QWEN3_8B = replace(LLAMA_3_8B, architecture="Qwen3ForCausalLM", intermediate_size=12288, num_layers=36, qk_norm=True)
HEADS_OF_80 = ModelConfig(
    "LlamaForCausalLM", 128256, 2560, 6912, 32, 32, 32, 80, 1e-5, 4096, RopeConfig(10000.0, 20), qk_norm=True,
    hidden_act="gelu_pytorch_tanh",
)  # fmt: skip


def main(architectures: list[int]) -> None:
    # Weights without memory have no numbers to look at.
    parameters.all_finite = kernels_weights.all_finite = lambda values: True
    for architecture in architectures:
        reporter = Reporter(architecture)
        tuning.device_key = lambda _, key=f"sm_{architecture}": key if (TABLE_ROW, key, tuning.FIXED) in TUNED else "any"
        run_models(reporter)
        reporter.begin({"dtype": "bfloat16"})
        launch_quantized()
        if architecture >= 89:
            launch_fp8()
    try:
        TritonOps(torch.device("cpu"), torch.float16)
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))


def run_models(reporter: Reporter) -> None:
    """Models and settings, each with what it adds to those before."""
    for name, config, settings in (
        ("llama", LLAMA_3_8B, {}),
        ("llama", LLAMA_3_8B, {"dtype": "float16"}),
        ("llama", LLAMA_3_8B, {"deterministic": True}),
        ("llama", LLAMA_3_8B, {"cache": FP8}),
        ("llama", LLAMA_3_8B, {"cache": "int8"}),
        ("smollm2", SMOLLM2_135M, {}),
        ("smollm2", SMOLLM2_135M, {"cache": "int8"}),
        ("qwen3", QWEN3_8B, {}),
        ("mistral", MISTRAL_7B, {}),
        ("mistral", MISTRAL_7B, {"cache": FP8}),
        ("mistral", MISTRAL_7B, {"cache": "int8"}),
        ("heads of 80", HEADS_OF_80, {}),
    ):
        if is_compiled(reporter.driver.architecture, name, settings.get("cache")):
            settings = {"dtype": "bfloat16", **settings}
            reporter.begin({"model": name, **settings})
            run_model(reporter, config, **settings)


def is_compiled(architecture: int, model: str, cache: Any) -> bool:
    if architecture in EIGHT_BIT_ONLY:
        return cache == FP8 and model == "mistral"
    return architecture >= 89 or (cache != FP8 and model not in NEWEST_ONLY)


class Reporter:
    """Prints what each kernel was compiled to, when it is loaded."""

    def __init__(self, architecture: int) -> None:
        self.driver = FakeDriver(architecture, self.report)
        self.driver.install()
        self.case: dict[str, Any] = {}
        self.late = False  # whether all that a server records at its start has run

    def begin(self, case: dict[str, Any]) -> None:
        self.case, self.late = case, False

    def report(self, source: Any, metadata: Any, machine_code: bytes) -> None:
        names = {place: source.fn.params[place[0]].name for place in source.constants}
        report = {
            "arch": self.driver.architecture,
            "kernel": metadata.name,
            "constants": {names[place]: value for place, value in source.constants.items()},
            "late": self.late,
        }
        print(json.dumps(report | self.case | resources(metadata, machine_code)), flush=True)


def resources(metadata: Any, machine_code: bytes) -> dict[str, Any]:
    """Registers per thread, bytes of spills per thread, shared memory per program, and counts of INSTRUCTIONS."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(machine_code)
        usage = run_tool("cuobjdump", "--dump-resource-usage", cubin)
        listing = run_tool("nvdisasm", "-c", cubin) if "attention" in metadata.name or "matmul" in metadata.name else ""
    registers, stack, local = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage).groups()
    return {
        "registers": int(registers),
        "spilled": int(stack) + int(local),
        "shared": metadata.shared,
        "instructions": {name: len(re.findall(rf"\b{name}\b", listing)) for name in INSTRUCTIONS},
    }


def run_tool(name: str, *arguments: str | Path) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def run_model(reporter: Reporter, config: ModelConfig, *, dtype: str, deterministic: bool = False, cache: str | None = None) -> None:
    """The passes of a model: decodes of all sizes, then prompts and mixed batches, which meet no other kernels by their numbers."""
    ops = new_ops(getattr(torch, dtype), deterministic=deterministic)
    model = build_model(config, config.max_position_embeddings, META)
    model.parameters.load(empty_weights(config, ops.dtype), ops)
    shape = block_shape(model.attention_shapes[0], 16, getattr(torch, cache or dtype))
    pool = torch.empty((1000, config.num_layers, *shape), dtype=getattr(torch, cache or dtype), device=META)
    kv_caches = list(pool.unbind(1))
    tables = SlotTables(64, config.max_position_embeddings, 16)
    buffers = BatchBuffers(2048, 64, tables.block_tables.shape[1], 16, META, draws=True)

    def forward_and_draw(ops: TritonOps, batch: Batch) -> torch.Tensor:
        ops.fetch_tokens(batch)
        logits = model.forward(ops, batch, kv_caches)
        ops.draw(logits, batch)
        return logits

    forward = ops.capture(forward_and_draw, buffers.capacity)

    def step(contexts: list[int], queries: list[int]) -> None:
        num_seqs = len(contexts)
        arrays = StepArrays(np.arange(num_seqs), np.array(contexts), np.array(queries), np.ones(num_seqs, np.bool_))
        batch = buffers.fill(tables, arrays)
        logits = forward(batch)[:num_seqs]
        launch_sampling(ops, logits)
        ops.draw(logits.float(), batch)  # once stages have changed them

    for size in forward.sizes:
        step([100] * size, [1] * size)
    step([0], [100])
    step([0, 100], [77, 1])
    step([0, 600], [77, 1])
    ops.copy_blocks(pool, pool, torch.empty(3, 2, dtype=torch.int64, device=META))
    reporter.late = True
    for size in (3, 5, 33):
        step([100] * size, [1] * size)
    for contexts, queries in (
        ([0, 0, 0], [7, 8, 9]),
        ([0, 0, 5, 900], [100, 13, 1, 1]),
        ([2000] * 17, [1] * 16 + [4]),
        ([9] * 5, [1] * 4 + [2]),
    ):
        step(contexts, queries)


def new_ops(dtype: torch.dtype, *, deterministic: bool) -> TritonOps:
    """The operations, told that Triton interprets, for else they would refuse tensors without memory."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        ops = TritonOps(META, torch.float16, deterministic=deterministic)
    ops.dtype = dtype
    return ops


def empty_weights(config: ModelConfig, dtype: torch.dtype) -> Iterator[tuple[str, Weight | torch.Tensor]]:
    for name, shape in weight_shapes(config).items():
        tensor = torch.empty(shape, dtype=dtype, device=META)
        yield name, DenseWeight(tensor) if len(shape) == 2 else tensor


def launch_sampling(ops: TritonOps, logits: torch.Tensor) -> None:
    num_rows = len(logits)
    ints, floats = np.zeros(num_rows, np.uint64), np.zeros(num_rows, np.float32)
    with contextlib.suppress(NotImplementedError):  # tokens cannot be read from where there is no memory
        ops.sample(logits.float(), DrawSettings(floats, floats, ints.astype(np.int32), floats.astype(np.float64), ints, ints, ints))
    with contextlib.suppress(NotImplementedError):
        ops.logprobs(logits.float(), ints.astype(np.int64), np.full(num_rows, 20, np.int32))


def launch_quantized() -> None:
    """4 bits with minima for every class of rows; then what needs the most shared memory, and 8 bits."""
    multiply_quantized(4, signed=False, has_mins=True, group_size=32, row_counts=(*ROW_CLASSES, None))
    multiply_quantized(4, signed=True, has_mins=False, group_size=64, row_counts=ROW_CLASSES[1:])
    multiply_quantized(8, signed=True, has_mins=False, group_size=32, row_counts=ROW_CLASSES[:1])


def multiply_quantized(bits: int, *, signed: bool, has_mins: bool, group_size: int, row_counts: tuple[int | None, ...]) -> None:
    """None among the numbers of rows stands for `deterministic`."""
    codes, scales = torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096, 4096 // group_size)
    packed = quantized_matmul.pack_grouped(
        QuantizedWeight(codes, scales, scales if has_mins else None, group_size, bits, signed), torch.device("cpu"), torch.bfloat16
    )
    assert packed is not None
    for num_rows in row_counts:
        x = torch.zeros(num_rows or 1, 4096, dtype=torch.bfloat16)
        quantized_matmul.quantized_matmul(x, packed, None, deterministic=num_rows is None)


def launch_fp8() -> None:
    weight, scales = torch.empty(4096, 4096, dtype=torch.float8_e4m3fn, device=META), torch.empty(4096, device=META)
    for num_rows in (*ROW_CLASSES, None):
        x = torch.empty(num_rows or 1, 4096, dtype=torch.bfloat16, device=META)
        fp8_matmul.fp8_matmul(x, weight, scales, None, deterministic=num_rows is None)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])

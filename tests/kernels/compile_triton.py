"""Compiles what the Triton operations would launch for a GPU, without one, and prints what became of it as lines of JSON.

A program of its own because in the tests' process Triton interprets. The real launch functions run on CPU tensors with real shapes;
each launch is caught, and its kernel compiled for the argument types, alignments and constants that it was called with.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kernels.batch import AttentionShape, Batch, QkNorm
from kernels.sampling import DrawSettings
from kernels.triton import TritonOps, activation, attention, blocks, fp8_matmul, matmul, norm, quantized_matmul, rotary, sampling, tuning
from kernels.triton.graphs import decode_batch
from kernels.triton.padding import pad_decodes
from kernels.triton.token_logprobs import logprobs
from kernels.weights import QuantizedWeight

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "max_num_imprecise_acc")
# Tensor cores (sm_80, sm_90; and with 8-bit floats sm_89, sm_90), asynchronous copies to shared memory.
INSTRUCTIONS = ("HMMA", "HGMMA", "QMMA", "QGMMA", "LDGSTS")
ROW_CLASSES = (8, 64, 512)  # a number of rows for each class of `kernels.triton.tuning`
EIGHT_BIT_ONLY = (89,)  # the first with 8-bit floats, and with less shared memory: only what these products compile to
TUNED = tuning.read_table(tuning.TABLE)
TABLE_ROW = "quantized_matmul"


def main(architectures: list[int]) -> None:
    for architecture in architectures:
        compiler = Compiler(GPUTarget("cuda", architecture, 32))
        JITFunction.run = compiler.catch
        tuning.device_key = lambda _, key=f"sm_{architecture}": key if (TABLE_ROW, key, tuning.FIXED) in TUNED else "any"
        if architecture in EIGHT_BIT_ONLY:
            compiler.case = {"dtype": str(torch.bfloat16)}
            launch_fp8(torch.bfloat16, ROW_CLASSES)
            launch_quantized(torch.bfloat16)
            continue
        for dtype in (torch.float16, torch.bfloat16):
            for head_size in (64, 128):
                compiler.case = {"dtype": str(dtype), "head_size": head_size}
                launch_attention(dtype, AttentionShape(32, 8, head_size, head_size**-0.5))
            compiler.case = {"dtype": str(dtype)}
            launch_others(dtype)
            compiler.case = {"dtype": str(dtype), "head_size": 128, "qk_norm": True}
            launch_normed_rotary(dtype, AttentionShape(32, 8, 128, 128**-0.5))
            launch_normed_rotary(dtype, AttentionShape(32, 8, 128, 128**-0.5, rotary_dim=32))
            compiler.case = {"dtype": str(dtype)}
            if architecture >= 89:
                launch_fp8(dtype, ROW_CLASSES if dtype == torch.bfloat16 else ROW_CLASSES[:1])
        compiler.case = {"dtype": str(torch.bfloat16)}
        launch_quantized(torch.bfloat16)
        launch_sampling()
        compiler.case = {"dtype": str(torch.bfloat16), "head_size": 128, "window": 4096}
        launch_attention(torch.bfloat16, AttentionShape(32, 8, 128, 128**-0.5, 4096))
        compiler.case = {"dtype": str(torch.bfloat16), "head_size": 80}
        launch_attention(torch.bfloat16, AttentionShape(32, 8, 80, 80**-0.5))
        if architecture >= 89:
            compiler.case = {"dtype": str(torch.bfloat16), "head_size": 128, "cache": "fp8"}
            launch_attention(torch.bfloat16, AttentionShape(32, 8, 128, 128**-0.5), cache_dtype=torch.float8_e4m3fn)
        compiler.case = {"dtype": str(torch.bfloat16), "head_size": 128, "deterministic": True}
        launch_attention(torch.bfloat16, AttentionShape(32, 8, 128, 128**-0.5), deterministic=True)
    try:
        TritonOps(torch.device("cpu"), torch.float16)
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))


class Compiler:
    """Stands in for the launch of a kernel."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.case: dict[str, Any] = {}
        self.seen: set[str] = set()  # a kernel of one case may be that of another, too

    @property
    def catch(self) -> Any:
        def run(kernel: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
            options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
            arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            compiled = triton.compile(source(kernel, arguments), target=self.target, options=options)
            if compiled.hash in self.seen:
                return
            self.seen.add(compiled.hash)
            constants = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
            report = {"arch": self.target.arch, "kernel": kernel.__name__, "constants": constants} | self.case
            print(json.dumps(report | resources(compiled)), flush=True)

        return run


def source(kernel: JITFunction, arguments: dict[str, Any]) -> ASTSource:
    """The specialisation that Triton would choose: multiples of 16 and the integer 1 are known to the compiler."""
    signature, constants, attributes = {}, {}, {}
    for parameter in kernel.params:
        name, value = parameter.name, arguments[parameter.name]
        if parameter.is_constexpr or (value is not None and type(value) is int and value == 1 and not parameter.do_not_specialize):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
            attributes[(parameter.num,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(parameter.num,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def resources(compiled: Any) -> dict[str, Any]:
    """Registers per thread, bytes of spills per thread, shared memory per program, and counts of INSTRUCTIONS."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = run_tool("cuobjdump", "--dump-resource-usage", cubin)
        listing = run_tool("nvdisasm", "-c", cubin) if "attention" in compiled.name or "matmul" in compiled.name else ""
    registers, stack, local = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage).groups()
    return {
        "registers": int(registers),
        "spilled": int(stack) + int(local),
        "shared": compiled.metadata.shared,
        "instructions": {name: len(re.findall(rf"\b{name}\b", listing)) for name in INSTRUCTIONS},
    }


def run_tool(name: str, *arguments: str | Path) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def launch_attention(
    dtype: torch.dtype, shape: AttentionShape, *, cache_dtype: torch.dtype | None = None, deterministic: bool = False
) -> None:
    """A mixed batch with long contexts, decodes with short ones, and the rotary embedding."""
    num_tokens, num_seqs = 64, 4
    ints = {size: torch.zeros(size, dtype=torch.int32) for size in (num_tokens, num_seqs, num_seqs + 1)}
    batch = Batch(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        max_query_len=30,
        max_seq_len=2000,
        token_ids=ints[num_tokens],
        positions=ints[num_tokens],
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
        query_start_loc=ints[num_seqs + 1],
        seq_lens=ints[num_seqs],
        block_tables=torch.zeros(num_seqs, 128, dtype=torch.int32),
        logits_indices=ints[num_seqs],
    )
    qkv = torch.zeros(num_tokens, shape.qkv_size, dtype=dtype)
    cache = torch.zeros(2, 2, shape.num_kv_heads, 16, shape.head_size, dtype=cache_dtype or dtype)
    attend = attention.PagedAttention(torch.device("cpu"), one_instruction=deterministic)
    attend(qkv, cache, batch, shape)
    pad_decodes(decode_batch(batch, num_seqs), batch.seq_lens)
    batch.max_query_len, batch.max_seq_len = 1, 100
    attend(qkv, cache, batch, shape)
    rotary.rotary_and_write_kv(qkv, cache, torch.zeros(8, shape.head_size), batch.positions, batch.slot_mapping, shape)


def launch_normed_rotary(dtype: torch.dtype, shape: AttentionShape) -> None:
    ints, weight = torch.zeros(64, dtype=torch.int32), torch.zeros(shape.head_size)
    qkv = torch.zeros(64, shape.qkv_size, dtype=dtype)
    cache = torch.zeros(2, 2, shape.num_kv_heads, 16, shape.head_size, dtype=dtype)
    rotary.rotary_and_write_kv(qkv, cache, torch.zeros(8, shape.head_size), ints, ints.long(), shape, QkNorm(weight, weight, 1e-6))


def launch_others(dtype: torch.dtype) -> None:
    for n in (576, 4096):
        x = torch.zeros(2, n, dtype=dtype)
        norm.add_rms_norm(x, x, x[0], 1e-5)
    norm.rms_norm(x, x[0], 1e-5)
    matmul.matmul(x, torch.zeros(6144, 4096, dtype=dtype), None)
    gate_up = torch.zeros(2, 2 * 14336, dtype=dtype)
    activation.silu_and_mul(gate_up)
    activation.gelu_tanh_and_mul(gate_up)
    pool = torch.zeros(2, 2, 8, 16, 128, dtype=dtype)
    blocks.copy_blocks(pool, pool, torch.zeros(1, 2, dtype=torch.int64))


def launch_quantized(dtype: torch.dtype) -> None:
    """4 bits with minima for every class of rows; then what needs the most shared memory, and 8 bits."""
    multiply_quantized(dtype, 4, signed=False, has_mins=True, group_size=32, row_counts=(*ROW_CLASSES, None))
    multiply_quantized(dtype, 4, signed=True, has_mins=False, group_size=64, row_counts=ROW_CLASSES[1:])
    multiply_quantized(dtype, 8, signed=True, has_mins=False, group_size=32, row_counts=ROW_CLASSES[:1])


def multiply_quantized(
    dtype: torch.dtype, bits: int, *, signed: bool, has_mins: bool, group_size: int, row_counts: tuple[int | None, ...]
) -> None:
    """None among the numbers of rows stands for `deterministic`."""
    codes, scales = torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096, 4096 // group_size)
    packed = quantized_matmul.pack_grouped(
        QuantizedWeight(codes, scales, scales if has_mins else None, group_size, bits, signed), torch.device("cpu"), dtype
    )
    assert packed is not None
    for num_rows in row_counts:
        x = torch.zeros(num_rows or 1, 4096, dtype=dtype)
        quantized_matmul.quantized_matmul(x, packed, None, deterministic=num_rows is None)


def launch_sampling() -> None:
    logits, zeros = torch.zeros(2, 128256), np.zeros(2)
    ints = zeros.astype(np.uint64)
    settings = DrawSettings(zeros.astype(np.float32), zeros.astype(np.float32), zeros.astype(np.int32), zeros, ints, ints, ints)
    sampling.sample(logits, settings)
    logprobs(logits, zeros.astype(np.int64), zeros.astype(np.int32))


def launch_fp8(dtype: torch.dtype, row_counts: tuple[int | None, ...]) -> None:
    weight, scales = torch.zeros(4096, 4096, dtype=torch.float8_e4m3fn), torch.zeros(4096)
    for num_rows in row_counts:
        fp8_matmul.fp8_matmul(torch.zeros(num_rows or 1, 4096, dtype=dtype), weight, scales, None, deterministic=num_rows is None)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])

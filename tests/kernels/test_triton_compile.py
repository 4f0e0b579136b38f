"""The Triton kernels as machine code for sm_80 (A100) and sm_90 (H100, H200), quantised products for sm_89 (L40S) too: compiled here,
though there need be no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    "rms_norm_kernel",
    "gated_activation_kernel",
    "copy_blocks_kernel",
    "rotary_and_write_kv_kernel",
    "matmul_kernel",
    "attention_decode_kernel",
    "attention_merge_kernel",
    "attention_prefill_kernel",
}
# Seen once: the last three have one type, and for the first it saves time.
ONE_TYPE = {"quantized_matmul_kernel", "sample_kernel", "logprobs_kernel", "pad_decodes_kernel"}
FP8_KERNELS = {"quantize_rows_kernel", "fp8_matmul_kernel"}
SHARED_BYTES = {
    80: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
}  # that one thread block may have: CUDA C++ Programming Guide, compute capabilities


@pytest.fixture(scope="module")
def reports() -> list[dict]:
    """What compile_triton.py says of each kernel and case."""
    program = Path(__file__).with_name("compile_triton.py")
    root = program.parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, program, "80", "89", "90"], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled(reports) -> list[dict]:
    return [report for report in reports if "kernel" in report]


def test_every_kernel_compiles_for_both_architectures_and_both_half_types(compiled):
    found = {
        (report["kernel"], report["arch"], None if report["kernel"] in ONE_TYPE else report["dtype"])
        for report in compiled
        if report["arch"] != 89
    }
    expected = {(kernel, arch, dtype) for kernel in KERNELS for arch in (80, 90) for dtype in ("torch.float16", "torch.bfloat16")}
    expected |= {(kernel, arch, None) for kernel in ONE_TYPE for arch in (80, 90)}
    expected |= {(kernel, 90, dtype) for kernel in FP8_KERNELS for dtype in ("torch.float16", "torch.bfloat16")}
    assert found == expected
    assert {report["kernel"] for report in compiled if report["arch"] == 89} == FP8_KERNELS | {"quantized_matmul_kernel"}


def test_no_kernel_spills_registers(compiled):
    for report in compiled:
        assert report["spilled"] == 0, report
        assert report["registers"] <= 255, report


def test_no_kernel_asks_for_more_shared_memory_than_there_is(compiled):
    for report in compiled:
        assert report["shared"] <= SHARED_BYTES[report["arch"]], report


def test_attention_and_products_run_on_the_tensor_cores_and_copy_asynchronously(compiled):
    for report in compiled:
        if report["kernel"] in ("attention_decode_kernel", "attention_prefill_kernel", "matmul_kernel"):
            is_large = report["constants"]["ROWS"] >= 64  # fewer rows are too few for HGMMA
            assert report["instructions"]["HGMMA" if is_large and report["arch"] == 90 else "HMMA"] > 0, report
            assert report["instructions"]["LDGSTS"] > 0, report


def test_quantised_products_run_on_the_tensor_cores_whatever_the_number_of_rows(compiled):
    instructions = {
        ("quantized_matmul_kernel", 80): "HMMA",
        ("quantized_matmul_kernel", 89): "HMMA",
        ("quantized_matmul_kernel", 90): "HGMMA",
        ("fp8_matmul_kernel", 89): "QMMA",
        ("fp8_matmul_kernel", 90): "QGMMA",
    }
    reports = [report for report in compiled if report["kernel"] in ("quantized_matmul_kernel", "fp8_matmul_kernel")]
    assert {(report["kernel"], report["arch"]) for report in reports} == set(instructions)
    for report in reports:
        assert report["instructions"][instructions[report["kernel"], report["arch"]]] > 0, report
        assert report["instructions"]["LDGSTS"] > 0, report


def test_attention_over_8_bit_floats_is_compiled_too(compiled):
    reports = [report for report in compiled if report.get("cache") == "fp8"]
    assert {report["kernel"] for report in reports} >= {"attention_decode_kernel", "attention_prefill_kernel", "rotary_and_write_kv_kernel"}


def test_norms_of_heads_are_compiled_into_the_rotary_kernel(compiled):
    reports = [report for report in compiled if report.get("qk_norm")]
    assert {report["kernel"] for report in reports} == {"rotary_and_write_kv_kernel"}
    assert {(report["arch"], report["constants"]["REST"] > 0) for report in reports if report["constants"]["HAS_NORM"]} == {
        (arch, is_partial) for arch in (80, 90) for is_partial in (False, True)
    }


def test_deterministic_attention_multiplies_with_one_instruction_whatever_the_number_of_queries(compiled):
    reports = [report for report in compiled if report.get("deterministic") and "prefill" in report["kernel"]]
    assert {report["arch"] for report in reports} == {80, 90}
    for report in reports:
        assert report["instructions"]["HMMA"] > 0, report
        assert report["instructions"]["HGMMA"] == 0, report


def test_kernels_are_not_compiled_anew_for_another_number_of_tokens(compiled):
    """Grid sizes and counts are plain arguments: the constants of a kernel are the model's alone."""
    for report in compiled:
        assert not {"num_tokens", "num_rows", "num_seqs", "num_splits", "first_seq"} & set(report["constants"])


def test_a_device_that_is_no_gpu_is_refused_with_what_to_do(reports):
    refused = [report["refused"] for report in reports if "refused" in report]
    assert len(refused) == 1
    assert "kernels=auto" in refused[0]

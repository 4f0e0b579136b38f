"""The Triton kernels as machine code for sm_80 (A100) and sm_90 (H100, H200), those for 8 bits for sm_89 (L40S) too: compiled here,
though there need be no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_gpu import SHARED_BYTES

KERNELS = {
    "rms_norm_kernel",
    "gated_activation_kernel",
    "copy_blocks_kernel",
    "rotary_and_write_kv_kernel",
    "attention_decode_kernel",
    "attention_merge_kernel",
    "attention_prefill_kernel",
    "draw_kernel",
}
# Seen in one type: the first five have but one, and for the others it saves time.
ONE_TYPE = {
    "sample_kernel", "logprobs_kernel", "order_top_kernel", "pad_decodes_kernel", "fetch_tokens_kernel", "matmul_kernel",
    "quantized_matmul_kernel", "add_parts_kernel", "rotate_heads_kernel",
}  # fmt: skip
FP8_KERNELS = {"quantize_rows_kernel", "fp8_matmul_kernel"}
SHARES = (("80", "89"), ("90",))  # of about the same work, side by side
# Seconds, against hanging alone: the work is under two minutes of one core, and takes many times that beside much else.
LIMIT = 1200
pytestmark = pytest.mark.timeout(LIMIT + 60)


@pytest.fixture(scope="module")
def reports() -> list[dict]:
    """What compile_triton.py says of each kernel and case."""
    with ThreadPoolExecutor(len(SHARES)) as pool:
        return [report for reports in pool.map(compile_share, SHARES) for report in reports]


def compile_share(architectures: tuple[str, ...]) -> list[dict]:
    program = Path(__file__).with_name("compile_triton.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(program.parents[2])}
    done = subprocess.run(
        [sys.executable, program, *architectures], env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled(reports) -> list[dict]:
    return [report for report in reports if "kernel" in report]


def test_every_kernel_compiles_for_both_architectures_and_both_half_types(compiled):
    found = {
        (report["kernel"], report["arch"], None if report["kernel"] in ONE_TYPE | FP8_KERNELS else report["dtype"])
        for report in compiled
        if report["arch"] != 89
    }
    expected = {(kernel, arch, dtype) for kernel in KERNELS for arch in (80, 90) for dtype in ("float16", "bfloat16")}
    expected |= {(kernel, arch, None) for kernel in ONE_TYPE for arch in (80, 90)}
    expected |= {(kernel, 90, None) for kernel in FP8_KERNELS}
    assert found == expected
    assert {report["kernel"] for report in compiled if report["arch"] == 89} >= FP8_KERNELS | {
        "quantized_matmul_kernel",
        "add_parts_kernel",
    }


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
    reports = [report for report in compiled if report.get("cache") == "float8_e4m3fn"]
    assert {report["kernel"] for report in reports} >= {"attention_decode_kernel", "attention_prefill_kernel", "rotary_and_write_kv_kernel"}


def test_attention_over_int8_is_compiled_for_both_architectures(compiled):
    reports = [report for report in compiled if report.get("cache") == "int8"]
    kernels = ("attention_decode_kernel", "attention_prefill_kernel", "rotary_and_write_kv_kernel", "rotate_heads_kernel")
    assert {(report["kernel"], report["arch"]) for report in reports} >= {(kernel, arch) for kernel in kernels for arch in (80, 90)}


def test_attention_in_a_window_is_compiled_for_every_type_of_cache_and_for_longer_contexts_than_a_split(compiled):
    reports = [report for report in compiled if report["kernel"] == "attention_decode_kernel" and report["constants"]["WINDOW"]]
    assert {(report.get("cache"), report["arch"], report["constants"]["PARTIAL"]) for report in reports} == {
        (cache, arch, is_partial)
        for cache, architectures in ((None, (80, 90)), ("float8_e4m3fn", (89, 90)), ("int8", (80, 90)))
        for arch in architectures
        for is_partial in (False, True)
    }


def test_norms_of_heads_are_compiled_into_the_rotary_kernel(compiled):
    reports = [report for report in compiled if report["kernel"] == "rotary_and_write_kv_kernel" and report["constants"]["HAS_NORM"]]
    assert {(report["arch"], report["constants"]["REST"] > 0) for report in reports} == {
        (arch, is_partial) for arch in (80, 90) for is_partial in (False, True)
    }


def test_deterministic_attention_multiplies_with_one_instruction_whatever_the_number_of_queries(compiled):
    reports = [report for report in compiled if report.get("deterministic") and "prefill" in report["kernel"]]
    assert {report["arch"] for report in reports} == {80, 90}
    for report in reports:
        assert report["instructions"]["HMMA"] > 0, report
        assert report["instructions"]["HGMMA"] == 0, report


def test_once_graphs_are_recorded_and_a_prompt_has_run_no_batch_meets_a_kernel_that_must_be_compiled(compiled):
    """Neither the numbers of a batch nor the addresses of its tensors make other kernels, which would be compiled while requests wait."""
    assert {report["model"] for report in compiled if "model" in report} == {"llama", "mistral", "heads of 80", "smollm2", "qwen3"}
    assert [report for report in compiled if report["late"]] == []


def test_a_device_that_is_no_gpu_is_refused_with_what_to_do(reports):
    refused = [report["refused"] for report in reports if "refused" in report]
    assert len(refused) == len(SHARES)
    assert all("kernels=auto" in message for message in refused)

"""The scripts for a machine with a GPU, as far as they go without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kernels.triton.tuning import CLASSES, FIXED, LARGEST_CLASS, TABLE, read_table
from loadtest import gpu_check

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_without_a_gpu_the_check_runs_at_toy_sizes_and_finds_every_kernel_right(tmp_path: Path) -> None:
    done = run("loadtest.gpu_check", "--device", "cpu", "--only", "kernels", "swap", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert len(rows) > 20
    assert rows["decode attention, KV of 8 bits"]["share"] > 0
    assert rows["blocks come back bit for bit"]["measured"] == "yes"


def test_a_section_that_fails_or_hangs_is_reported_and_keeps_what_it_had_found() -> None:
    hung = gpu_check.run_section("kernels", "cpu", 0.2)
    assert "not done after" in hung[-1].failed
    (failed,) = gpu_check.run_section("swap", "xpu", 60.0)
    assert "exit status 2" in failed.failed
    assert "invalid choice" in failed.failed
    assert failed.verdict.startswith("FAILED")


def test_what_a_search_for_tiles_finds_is_entered_in_a_table(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    shutil.copy(TABLE, table)
    done = run("loadtest.tune_gpu", "--seconds", "0", "--table", str(table))
    assert done.returncode == 0, done.stderr
    found, before = read_table(table), read_table(TABLE)
    assert set(found) == set(before)
    assert {name for kernel, device, name in found if device == "any"} == {FIXED, LARGEST_CLASS, *(name for _, name in CLASSES)}
    assert found["fp8_matmul", "sm_89", LARGEST_CLASS] == before["fp8_matmul", "sm_89", LARGEST_CLASS]

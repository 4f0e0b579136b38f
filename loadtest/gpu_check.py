"""Whether Octavo is right and fast on the GPU at hand: `python -m loadtest.gpu_check`, under eight minutes, no network.

Every Triton kernel against plain PyTorch, and against its floor: the bytes it must move at the measured copy bandwidth, or its
multiply-adds at the measured rate of bfloat16 products. Then the engine with random weights of Llama 3 8B's shapes: decodes of 1 and 64
sequences, a long prefill, the time that the device waits for the host, what `--deterministic` costs, and transformers on the same work.
Swapping to pinned memory, and the tests of the kernels as they run on a GPU. The last table is of the goals.

Each section is a process with a time limit of its own: one that fails or hangs is reported, and the others go on. Without a GPU (or with
`--device cpu`) all of it runs at toy sizes through Triton's interpreter, which shows that the script works; the times mean nothing then.
`--section NAME` runs one in this process and prints its rows as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
TOTAL_SECONDS = 470.0
MIXED = "output tokens/s of requests of mixed lengths"


@dataclass(frozen=True)
class Row:
    """One figure. `share` is of the floor: the floor's time over the measured one, so 1 is perfect."""

    name: str
    measured: str
    floor: str = ""
    share: float | None = None
    goal: float | None = None  # for `share`
    failed: str = ""  # what is wrong, if something is

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"FAILED: {self.failed}"
        if self.share is None or self.goal is None:
            return ""
        return "met" if self.share >= self.goal else "missed"


def kernels(device_name: str) -> Iterator[Row]:
    """Each kernel: does it agree, and how near is it to its floor?"""
    import torch

    from loadtest import gpu_kernels

    device = torch.device(device_name)
    sizes = gpu_kernels.REAL if device_name == "cuda" else gpu_kernels.TOY
    floors = gpu_kernels.measure_floors(device)
    yield Row("copy bandwidth", f"{floors.bytes_per_second / 1e12:.3f} TB/s")
    yield Row("bfloat16 product", f"{floors.flops_per_second / 1e12:.1f} TFLOP/s")
    goals = {"decode attention, KV of 16 bits": 0.85, "prefill attention": 0.6, "rotary and KV write": 0.85}
    goals |= {"addition and norm": 0.85, "gated activation": 0.85}
    for case in gpu_kernels.cases(device, sizes):
        try:
            off = case.check()
            seconds = gpu_kernels.seconds_of(case.run, device)
        except Exception as error:  # the other kernels are wanted all the same
            yield Row(case.name, "", failed=f"{type(error).__name__}: {error}".splitlines()[0][:200])
            continue
        floor = case.floor(floors)
        wrong = "" if off <= case.tolerance else f"differs from the reference by {off:.3g} of the largest number"
        yield Row(case.name, f"{seconds * 1e6:.1f} us", f"{floor * 1e6:.1f} us", floor / seconds, goals.get(case.name), wrong)


def engine(device_name: str) -> Iterator[Row]:
    """Decodes and a prefill of the whole engine, and what it makes the device wait."""
    import torch

    from loadtest import gpu_engine, gpu_kernels

    device = torch.device(device_name)
    load = gpu_engine.REAL_LOAD if device_name == "cuda" else gpu_engine.TOY_LOAD
    floors = gpu_kernels.measure_floors(device)
    with tempfile.TemporaryDirectory() as directory:
        llm = gpu_engine.new_engine(Path(directory), load, device)
        for num_seqs, goal in ((1, 1 / 1.15), (load.num_seqs, 1 / 1.25)):
            figures = gpu_engine.decode(llm, load, num_seqs)
            kv = gpu_engine.kv_bytes(load.model, num_seqs * load.context)
            floor = (gpu_engine.weight_bytes(load.model) + kv) / floors.bytes_per_second
            name = f"decode, {num_seqs} sequences at {load.context}"
            yield timed(name, figures.step_seconds, floor, goal)
            waiting = figures.host_share
            if device_name == "cuda":
                # By the device's clock; the copies count as waiting, so this is what it can be at most.
                alone = gpu_engine.forward_seconds(llm, load, num_seqs)
                yield timed(f"{name}: pass and draws alone", alone, floor, None)
                waiting = max(0.0, 1 - alone / figures.step_seconds)
            yield Row(f"{name}: waiting for the host", f"{waiting:.1%}", "0", 1 - waiting, 0.97)
        seconds = gpu_engine.prefill_seconds(llm, load)
        flops = gpu_engine.prefill_flops(load.model, load.prefill)
        yield timed(f"prefill, {load.prefill} tokens", seconds, flops / floors.flops_per_second, 0.6)
        gpu_engine.mixed_tokens_per_second(llm, load)  # warms up
        yield Row(f"{MIXED}, {load.num_seqs} at once", f"{gpu_engine.mixed_tokens_per_second(llm, load):.0f}")


def deterministic(device_name: str) -> Iterator[Row]:
    """The same decodes with `--deterministic`."""
    import torch

    from loadtest import gpu_engine

    device = torch.device(device_name)
    load = gpu_engine.REAL_LOAD if device_name == "cuda" else gpu_engine.TOY_LOAD
    with tempfile.TemporaryDirectory() as directory:
        llm = gpu_engine.new_engine(Path(directory), load, device, deterministic=True)
        for num_seqs in (1, load.num_seqs):
            figures = gpu_engine.decode(llm, load, num_seqs)
            yield Row(f"deterministic decode, {num_seqs} sequences", f"{figures.step_seconds * 1000:.2f} ms")
        num_changed = gpu_engine.num_changed_by_launching_ahead(llm, load)
        wrong = f"{num_changed} of {load.num_seqs} sequences get other tokens" if num_changed else ""
        yield Row("steps launched ahead give the tokens of steps that are waited for", "no" if wrong else "yes", failed=wrong)
        yield Row("deterministic prefill", f"{gpu_engine.prefill_seconds(llm, load) * 1000:.1f} ms")


def transformers(device_name: str) -> Iterator[Row]:
    """The same requests of mixed lengths through `generate`."""
    import torch

    from loadtest import gpu_engine

    load = gpu_engine.REAL_LOAD if device_name == "cuda" else gpu_engine.TOY_LOAD
    rate = gpu_engine.transformers_tokens_per_second(load, torch.device(device_name))
    yield Row(f"transformers: {MIXED}, batches of {load.num_seqs}", f"{rate:.0f}")


def swap(device_name: str) -> Iterator[Row]:
    """Blocks to host memory and back, bit for bit, and how fast; and how long this process is held up, which launches the step next."""
    import torch

    from loadtest.gpu_swap import swap_figures

    device = torch.device(device_name)
    wrong = False
    for kib in (2048, 64) if device.type == "cuda" else (2,):
        for name, in_runs in (("neighbours", True), ("far apart", False)):
            figures = swap_figures(device, kib << 10, in_runs=in_runs)
            for direction, seconds in (("out", figures.out), ("in", figures.back)):
                rate = f"{figures.num_bytes / seconds.total / 1e9:.1f} GB/s, {seconds.host * 1e6:.0f} us to start"
                yield Row(f"swap {direction}, blocks of {kib} KiB, {name} in host memory", rate)
            wrong |= not figures.is_equal
    yield Row("blocks come back bit for bit", "no" if wrong else "yes", failed="blocks that came back differ" if wrong else "")


def tests(device_name: str) -> Iterator[Row]:
    """The tests of the kernels, which run on a GPU where they are not interpreted; in several processes, as most of it is compiling."""
    files = ["attention", "ops", "matmul", "quantized", "sample", "graphs"]
    paths = [f"tests/kernels/test_triton_{name}.py" for name in files]
    if device_name != "cuda":
        paths = []
    paths.append("tests/engine/test_host_pool.py")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--no-header", "--tb=line", *paths]
    if device_name == "cuda" and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(12, os.cpu_count() or 1))]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True)
        problem = ""
        try:
            if process.wait(timeout=SECTIONS["tests"].seconds - 10):
                problem = f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            problem = "out of time"
        out.seek(0)
        lines = out.read().split("\n")
    passed = sum("PASSED" in line for line in lines)
    failures = list(
        dict.fromkeys(line.split(" ")[-1] if line.startswith("[") else line.split(" ")[0] for line in lines if " FAILED " in line)
    )
    errors = [line for line in lines if line.startswith("E  ") or (": " in line and line.startswith("/"))]
    told = f"{problem}; {len(failures)} failed: {'; '.join([*failures[:6], *errors[:3]])}"[:600]
    yield Row("tests of the kernels", f"{passed} passed", failed=told if problem else "")


@dataclass(frozen=True)
class Section:
    run: Callable[[str], Iterator[Row]]
    seconds: float  # that it may take


SECTIONS = {
    "kernels": Section(kernels, 110),
    "engine": Section(engine, 110),
    "transformers": Section(transformers, 60),
    "deterministic": Section(deterministic, 75),
    "swap": Section(swap, 30),
    "tests": Section(tests, 150),
}


def timed(name: str, seconds: float, floor: float, goal: float | None) -> Row:
    return Row(name, f"{seconds * 1000:.2f} ms", f"{floor * 1000:.2f} ms", floor / seconds, goal)


def run_section(name: str, device_name: str, seconds: float) -> list[Row]:
    """In a process of its own; what it has said before its end counts, however it ends."""
    environment = os.environ | {"TRITON_INTERPRET": "0" if device_name == "cuda" else "1"}
    command = [sys.executable, "-m", "loadtest.gpu_check", "--device", device_name, "--section", name]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err, start_new_session=True)
        try:
            process.wait(timeout=seconds)
            problem = "" if process.returncode == 0 else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            problem = f"not done after {seconds:.0f} s"
        out.seek(0)
        err.seek(0)
        rows = [Row(**json.loads(line)) for line in out if line.startswith("{")]
        if problem:
            last = (err.read().strip().splitlines() or [""])[-1]
            rows.append(Row(f"section {name}", "", failed=f"{problem} {last}"[:300]))
    return rows


def print_rows(title: str, rows: list[Row]) -> None:
    table = Table("", "measured", "floor", "of the floor", "goal", "", title=title)
    for row in rows:
        share, goal = (("" if value is None else f"{value:.0%}") for value in (row.share, row.goal))
        table.add_row(row.name, row.measured, row.floor, share, goal, row.verdict)
    Console(width=150).print(table)


def ratio_to_transformers(rows: list[Row]) -> list[Row]:
    """The figure that needs two sections."""
    rates = [float(row.measured) for row in rows if MIXED in row.name]
    return [Row("throughput over transformers'", f"{rates[0] / rates[1]:.1f} times", "8 times")] if len(rates) == 2 else []


def main() -> int:
    """Returns 1 if something failed; a missed goal is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--section", choices=list(SECTIONS))
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="the sections to run")
    parser.add_argument("--json", type=Path, help="also write all rows here")
    args = parser.parse_args()
    device_name = args.device if args.device != "auto" else find_device()
    if args.section is not None:
        for row in SECTIONS[args.section].run(device_name):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    deadline = time.monotonic() + TOTAL_SECONDS
    rows: list[Row] = []
    for name in args.only:
        left = deadline - time.monotonic()
        started = time.monotonic()
        found = run_section(name, device_name, min(left, SECTIONS[name].seconds)) if left > 5 else []
        found = found or [Row(f"section {name}", "", failed="no time was left")]
        print_rows(f"{name}, {time.monotonic() - started:.0f} s", found)
        rows += found
    rows += ratio_to_transformers(rows)
    print_rows("goals" if device_name == "cuda" else "goals (toy sizes in the interpreter: the times mean nothing)", goal_rows(rows))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.failed for row in rows))


def goal_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.goal is not None or row.failed or row.name.startswith("throughput over")]


def find_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main())

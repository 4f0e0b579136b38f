"""The C kernels are built once, safely, and are right on machines with fewer instructions than this one."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from cpu_cases import CPU, REFERENCE, cpu_ops, make_batch, make_cache, random_quantized

from kernels.batch import AttentionShape
from kernels.cpu import build
from kernels.cpu.ops import CpuOps
from kernels.cpu.structs import load_library


def build_in(directory: Path, sources: Path) -> subprocess.Popen[str]:
    """A process that builds `sources` with an empty cache directory."""
    script = (
        f"from pathlib import Path; from kernels.cpu import build; build.SOURCE_DIR = Path({str(sources)!r}); print(build.library_path())"
    )
    environment = {"XDG_CACHE_HOME": str(directory), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def small_sources(tmp_path, monkeypatch):
    """Sources that are compiled in no time, and a cache of their own."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "small.c").write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(build, "SOURCE_DIR", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return sources


def test_two_processes_that_build_at_once_leave_one_private_library(tmp_path, small_sources):
    processes = [build_in(tmp_path, small_sources) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(paths) == 1
    directory = Path(paths.pop()).parent
    assert directory.stat().st_mode & 0o077 == 0
    assert [entry.suffix for entry in directory.iterdir()] == [".so"]


@pytest.mark.parametrize("length", [0, 100, 4096, -1])
def test_a_library_that_was_cut_short_is_built_again(small_sources, length):
    path = build.library_path()
    content = path.read_bytes()
    path.write_bytes(content[:length])
    assert build.library_path() == path
    assert build.is_whole(path)
    assert ctypes.CDLL(str(path)).answer() == 42


def test_without_a_compiler_what_was_built_before_serves(small_sources, monkeypatch):
    path = build.library_path()
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert build.library_path() == path
    (small_sources / "small.c").write_text("int answer(void) { return 43; }\n")
    with pytest.raises(build.BuildError, match="install gcc or clang"):
        build.library_path()


@pytest.mark.parametrize("home", ["/proc/no-home", None])
def test_without_a_home_to_write_to_the_library_is_still_built_only_once(tmp_path, monkeypatch, home):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home is None:
        monkeypatch.setattr(Path, "home", no_home)
    else:
        monkeypatch.setenv("HOME", home)
    directory = build.cache_dir()
    assert directory.parent == tmp_path
    assert build.cache_dir() == directory
    directory.chmod(0o777)
    assert build.cache_dir() != directory


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_cache_directory_that_others_may_write_to_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_dir() == tmp_path / "octavo"
    (tmp_path / "octavo").chmod(0o777)
    assert tmp_path not in build.cache_dir().parents


def test_another_processor_or_compiler_another_library(tmp_path, small_sources, monkeypatch):
    here = build.code_fingerprint()
    assert here == build.code_fingerprint()
    monkeypatch.setattr(build, "processor", lambda: "another")
    assert here != build.code_fingerprint()
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh")
    before = build.compiler_fingerprint(str(compiler))
    assert before == build.compiler_fingerprint(str(compiler))
    compiler.write_text("#!/bin/bash")
    assert before != build.compiler_fingerprint(str(compiler))


OTHER_COMPILERS = [name for name in ("gcc-9", "gcc-10", "gcc-11", "clang", "clang-14") if shutil.which(name)]


@pytest.mark.parametrize("compiler", OTHER_COMPILERS or [pytest.param("", marks=pytest.mark.skip("there is no other compiler here"))])
def test_older_compilers_and_clang_know_all_that_the_sources_say(compiler):
    checks = [*build.native_flags(compiler), *build.FLAGS, "-fsyntax-only", "-Werror"]
    build.run_compiler([compiler, *checks, *map(str, sorted(build.SOURCE_DIR.glob("*.c")))])


def test_the_environment_may_choose_the_instructions(monkeypatch):
    before = build.code_fingerprint()
    monkeypatch.setenv("OCTAVO_CPU_FLAGS", "-march=haswell -mtune=generic")
    assert build.code_fingerprint() != before
    assert build.native_flags(build.find_compiler()) == ["-march=haswell", "-mtune=generic"]


# The older processors that this one can stand in for.
PLAINER = [["-march=x86-64"]] if platform.machine() == "x86_64" else []
if "avx2" in build.processor():
    PLAINER.append(["-march=haswell"])
if "avx_vnni" in build.processor():
    PLAINER.append(["-march=haswell", "-mavxvnni"])


@pytest.fixture(scope="module", params=PLAINER, ids=" ".join)
def plainer_ops(request, tmp_path_factory):
    """The kernels as an older processor gets them: without any of the instructions that vectors are made of, with AVX2 alone,
    and with AVX2 and products of bytes."""
    path = tmp_path_factory.mktemp("plain") / "kernels.so"
    build.compile_library(build.find_compiler(), [*request.param, *build.FLAGS], path)
    return CpuOps(load_library(path), CPU, torch.float32, 2)


@pytest.mark.parametrize(("bits", "signed", "group_size"), [(4, False, 32), (3, True, 16), (8, True, 32), (6, True, 16)])
def test_plainer_machines_compute_the_same_products(plainer_ops, bits, signed, group_size):
    generator = torch.Generator().manual_seed(bits)
    weight = random_quantized(61, 192, generator, bits, signed, group_size)
    x = torch.randn(13, 192, generator=generator)
    ops = cpu_ops()
    expected = ops.linear(x, ops.pack_linear(weight, None))
    packed = plainer_ops.pack_linear(weight, None)
    torch.testing.assert_close(plainer_ops.linear(x, packed), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(plainer_ops.linear(x[4:5], packed)[0], plainer_ops.linear(x, packed)[4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_plainer_machines_compute_the_same_attention(plainer_ops, dtype):
    generator = torch.Generator().manual_seed(1)
    shape = AttentionShape(6, 2, 80, 0.1, sliding_window=90)
    batch = make_batch([(300, 1), (0, 40), (77, 5)], 16, 80, generator)
    cache = make_cache(80, shape, 16, dtype, generator)
    qkv = torch.randn(batch.num_tokens, shape.qkv_size, generator=generator)
    expected = REFERENCE.paged_attention(qkv, cache, batch, shape)
    torch.testing.assert_close(plainer_ops.paged_attention(qkv, cache, batch, shape), expected, rtol=1e-4, atol=1e-5)
    x = torch.randn(3, 100, generator=generator) * 10
    torch.testing.assert_close(plainer_ops.silu_and_mul(x), REFERENCE.silu_and_mul(x), rtol=1e-5, atol=1e-5)


def run_portable(command: list[str], program: Path, runner: list[str]) -> list[tuple[str, list[float]]]:
    """What tests/kernels/portable.c prints when it is built with `command`: lines of a name and numbers."""
    sources = [str(Path(__file__).with_name("portable.c")), *map(str, sorted(build.SOURCE_DIR.glob("*.c")))]
    build.run_compiler([*command, *build.FLAGS, *sources, "-o", str(program), "-lm"])
    lines = subprocess.run([*runner, str(program)], capture_output=True, check=True, text=True, timeout=120).stdout.splitlines()
    assert "differs" not in "".join(lines), "a decode has other bits than the same token in a prefill"
    return [(name, [float(number) for number in numbers]) for name, *numbers in map(str.split, lines) if name != "decode"]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")), reason="no cross compiler, no emulator")
@pytest.mark.parametrize("instructions", ["armv8-a", "armv8.2-a+dotprod"])
def test_arm_computes_what_this_machine_computes(tmp_path, instructions):
    here = run_portable([build.find_compiler(), *build.native_flags(build.find_compiler())], tmp_path / "here", [])
    cross = ["aarch64-linux-gnu-gcc", "-static", f"-march={instructions}"]
    arm = run_portable(cross, tmp_path / "arm", ["qemu-aarch64", "-cpu", "max"])
    assert len(arm) == len(here) == 10
    for (name, ours), (_, theirs) in zip(here, arm, strict=True):
        torch.testing.assert_close(torch.tensor(theirs), torch.tensor(ours), rtol=1e-4, atol=1e-5, msg=name)

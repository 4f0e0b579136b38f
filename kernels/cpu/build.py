"""Compiles the C kernels with the machine's own compiler, once, into the user's cache directory.

    python -m kernels.cpu.build        build now, print where the library is

The library's name is a hash of everything that decides its code: sources, flags, compiler, processor. So it is built again when one of
them changes, an image can carry it ready-made, and processes that build at once write the same file.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_DIR = Path(__file__).parent / "csrc"
# No -ffast-math, and no fusing of products and sums but where the code says so: results must not depend on what a compiler finds.
# Not -O3, nor automatic vectors: they make many variants of each product's loop, which takes ten seconds and gains nothing.
FLAGS = [
    "-O2",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-std=gnu11",
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Wno-psabi",  # vectors are passed between our own functions only
]
COMPILERS = ("gcc", "cc", "clang")


class BuildError(Exception):
    """The C kernels cannot be built here; the message says why."""


def library_path() -> Path:
    """Where the compiled library is, building it first if it is not there. Raises BuildError."""
    compiler = find_compiler()
    machine_flags = native_flags(compiler)
    path = cache_dir() / f"cpu-kernels-{fingerprint(compiler, machine_flags)}.so"
    if not path.exists():
        compile_library(compiler, [*machine_flags, *FLAGS], path)
    return path


def find_compiler() -> str:
    """The first C compiler on the path. Raises BuildError if there is none."""
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("no C compiler was found: install gcc or clang")


def native_flags(compiler: str) -> list[str]:
    """The flags that let the compiler use all of this processor's instructions, those of them that it knows.

    Tuning stays generic: gcc 12 tunes for Zen 3 on anything newer, and then keeps AVX-512 values in memory.
    """
    for flags in (["-march=native", "-mtune=generic"], ["-march=native"], ["-mcpu=native"]):
        probe = subprocess.run([compiler, *flags, "-E", "-x", "c", os.devnull], capture_output=True, check=False)
        if probe.returncode == 0:
            return flags
    return []


def cache_dir() -> Path:
    """`octavo` in the user's cache directory, created private; a fresh temporary directory where that is not ours to trust."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "octavo"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # Code is loaded from here: nobody else may be able to put a file in.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    except (OSError, RuntimeError):
        pass  # a read-only or absent home
    return Path(tempfile.mkdtemp(prefix="octavo-"))


def fingerprint(compiler: str, machine_flags: list[str]) -> str:
    """A hash of all that decides the library's code."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(repr([machine_flags, FLAGS, version, processor()]).encode())
    for source in sorted(SOURCE_DIR.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:20]


def processor() -> str:
    """The kind of processor and the instructions it has, as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))][:4]
    return "\n".join([platform.machine(), *sorted(set(first))])


def compile_library(compiler: str, flags: list[str], path: Path) -> None:
    """Compile every source and link them into `path`, which appears whole or not at all. Raises BuildError."""
    sources = sorted(SOURCE_DIR.glob("*.c"))
    with tempfile.TemporaryDirectory(dir=path.parent) as work, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = [Path(work) / f"{source.stem}.o" for source in sources]
        commands = [[compiler, *flags, "-c", str(source), "-o", str(target)] for source, target in zip(sources, objects, strict=True)]
        list(pool.map(run_compiler, commands))
        library = Path(work) / "library.so"
        run_compiler([compiler, *flags, "-shared", *map(str, objects), "-o", str(library), "-lm"])
        library.replace(path)


def run_compiler(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


if __name__ == "__main__":
    print(library_path())

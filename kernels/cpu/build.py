"""Compiles the C kernels with the machine's own compiler, once, into the user's cache directory.

    python -m kernels.cpu.build        build now, print where the library is

The library's name holds two hashes: of what its code is made from (sources, flags, processor), and of the compiler. So it is built again
when one of them changes, an image can carry it ready-made, and processes that build at once write the same file. It ends with a digest
of what comes before: one that lost power or disk space has cut short is built again too.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.container import usable_cores

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
DIGEST_BYTES = 32


class BuildError(Exception):
    """The C kernels cannot be built here; the message says why."""


def library_path() -> Path:
    """Where the compiled library is, building it first if it is not there.

    Without a compiler, one that was built here before will do. Raises BuildError where there is neither.
    """
    directory = cache_dir()
    code = code_fingerprint()
    try:
        compiler = find_compiler()
    except BuildError:
        built = sorted(directory.glob(f"cpu-kernels-{code}-*.so"), key=lambda path: path.stat().st_mtime)
        whole = [path for path in built if is_whole(path)]
        if not whole:
            raise
        return whole[-1]
    path = directory / f"cpu-kernels-{code}-{compiler_fingerprint(compiler)}.so"
    if not is_whole(path):
        compile_library(compiler, [*native_flags(compiler), *FLAGS], path)
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

    Tuning stays generic: gcc 12 tunes for Zen 3 on anything newer, and then keeps AVX-512 values in memory. The environment variable
    OCTAVO_CPU_FLAGS names others: `-march=haswell -mtune=generic` builds what a processor with AVX2 and no AVX-512 gets.
    """
    chosen = os.environ.get("OCTAVO_CPU_FLAGS")
    if chosen:
        return shlex.split(chosen)
    for flags in (["-march=native", "-mtune=generic"], ["-march=native"], ["-mcpu=native"]):
        probe = subprocess.run([compiler, *flags, "-E", "-x", "c", os.devnull], capture_output=True, check=False)
        if probe.returncode == 0:
            return flags
    return []


def cache_dir() -> Path:
    """`octavo` in the user's cache directory; where that cannot be used, a directory of the user's own among the temporary ones.

    Created private: code is loaded from here, so nobody else may be able to put a file in. Where even that one is not ours to trust, a
    fresh one.
    """
    for path in (_home_cache(), Path(tempfile.gettempdir()) / f"octavo-{os.getuid()}"):
        if path is not None and _is_private(path):
            return path
    return Path(tempfile.mkdtemp(prefix="octavo-"))


def _home_cache() -> Path | None:
    """None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"
    except RuntimeError:
        return None


def _is_private(path: Path) -> bool:
    """Whether a directory is there, or can be made, that this user alone may write to, and put a link in the place of."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        ours = status.st_uid == path.lstat().st_uid == os.getuid()
        return ours and not status.st_mode & 0o022 and os.access(path, os.W_OK)
    except OSError:
        return False  # a read-only or absent home


def code_fingerprint() -> str:
    """A hash of all that decides the library's code, but for the compiler."""
    digest = hashlib.sha256(repr([FLAGS, os.environ.get("OCTAVO_CPU_FLAGS"), processor()]).encode())
    for source in sorted(SOURCE_DIR.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:20]


def compiler_fingerprint(compiler: str) -> str:
    """Tells one build of a compiler from another by its file: asking for its version would take longer than all else here."""
    path = Path(compiler).resolve()
    status = path.stat()
    return hashlib.sha256(repr([str(path), status.st_size, status.st_mtime_ns]).encode()).hexdigest()[:8]


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
    with tempfile.TemporaryDirectory(dir=path.parent) as work, ThreadPoolExecutor(usable_cores()) as pool:
        objects = [Path(work) / f"{source.stem}.o" for source in sources]
        commands = [[compiler, *flags, "-c", str(source), "-o", str(target)] for source, target in zip(sources, objects, strict=True)]
        list(pool.map(run_compiler, commands))
        library = Path(work) / "library.so"
        run_compiler([compiler, *flags, "-shared", *map(str, objects), "-o", str(library), "-lm"])
        with library.open("r+b") as file:
            file.write(hashlib.sha256(file.read()).digest())
        library.replace(path)


def is_whole(library: Path) -> bool:
    """Whether a library is there, and ends with the digest that `compile_library` has put behind it. A linker does not mind it."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def run_compiler(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


if __name__ == "__main__":
    print(library_path())

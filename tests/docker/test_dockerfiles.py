"""The Dockerfiles, without an engine to build them: what they copy, what they install, and how they are started."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser
from served_flags import ROOT, configs

from server.routes import health

DOCKERFILES = [ROOT / "docker" / name for name in ("Dockerfile", "Dockerfile.cuda")]
HADOLINT = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")


def instructions(path: Path, name: str) -> list[str]:
    with path.open("rb") as file:
        parsed: list[dict[str, Any]] = DockerfileParser(fileobj=file).structure
    return [step["value"] for step in parsed if step["instruction"] == name]


def copied(path: Path) -> list[str]:
    """What comes from the repository."""
    words = [value.split() for value in instructions(path, "COPY")]
    return [source for *sources, _ in words for source in sources if not any(word.startswith("--from") for word in sources)]


def ignored(path: str) -> bool:
    """Whether .dockerignore leaves a file or directory of the root out of what is sent to the engine: its last rule that fits counts."""
    fits = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and fnmatch.fnmatch(path, pattern.removeprefix("!")):
            fits = not pattern.startswith("!")
    return fits


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint, which pip installs on Linux (x86-64)")
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    done = subprocess.run([str(HADOLINT), str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_is_sent_to_the_engine(path: Path) -> None:
    assert {"engine", "kernels", "server", "octavo.py", "pyproject.toml", "constraints.txt"} <= set(copied(path))
    for name in copied(path):
        assert (ROOT / name).exists(), name
        assert not ignored(name), name


def test_nothing_else_is_sent_to_the_engine() -> None:
    wanted = {name for path in DOCKERFILES for name in copied(path)}
    assert {path.name for path in ROOT.iterdir() if not ignored(path.name)} == wanted


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_image_runs_as_a_user_who_is_not_root_and_owns_the_cache(path: Path) -> None:
    assert instructions(path, "USER") == ["10001:10001"]
    assert instructions(path, "VOLUME") == ["/cache"]
    assert any("install -d -o octavo -g octavo -m 0700 /cache" in value for value in instructions(path, "RUN"))
    assert len(instructions(path, "FROM")) == 2, "what builds stays behind"
    assert all(re.match(r"[\w./-]+:\d+\.\d+", base) for base in instructions(path, "FROM"))
    assert all("pip install -c" in value or "--no-deps" in value for value in instructions(path, "RUN") if "pip install" in value)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_it_listens_on_every_address_at_the_port_that_its_health_check_asks(path: Path) -> None:
    program, command, *arguments = json.loads(instructions(path, "ENTRYPOINT")[0])
    assert (program, command) == ("octavo", "serve")
    joined = [f"{name}={value}" for name, value in zip(arguments[::2], arguments[1::2], strict=True)]
    _, server = configs(joined, {})
    assert server.host == "0.0.0.0"
    assert instructions(path, "EXPOSE") == [str(server.port)]
    (check,) = instructions(path, "HEALTHCHECK")
    assert f"http://127.0.0.1:{server.port}/ready" in check
    assert "/ready" in {route.path for route in health.router.routes}  # type: ignore[attr-defined]
    assert instructions(path, "STOPSIGNAL") == ["SIGTERM"]


def test_its_health_check_fails_where_no_server_is_ready() -> None:
    (check,) = instructions(DOCKERFILES[0], "HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    code = words[2].replace("8000", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1


def test_what_is_installed_has_every_file_that_the_packages_need(tmp_path: Path) -> None:
    for name in copied(DOCKERFILES[0]):
        source = ROOT / name
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source, tmp_path / name, ignore=skip) if source.is_dir() else shutil.copy(source, tmp_path / name)
    needed = {str(path.relative_to(tmp_path)) for package in ("server", "engine", "kernels") for path in _files(tmp_path / package)}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path), "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert needed | {"octavo.py"} == packed


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]

"""Threads and memory go by a container's limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels import container

CORES = len(os.sched_getaffinity(0))
HALF_A_CORE, NO_LIMIT = "50000 100000\n", "max 100000\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(container, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(container, "OWN_GROUPS", tmp_path / "own")
    return tmp_path / "cgroup"


def write(groups: Path, own: str, files: dict[str, str]) -> None:
    groups.with_name("own").write_text(own)
    for name, content in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"cpu.max": HALF_A_CORE}),
        ("0::/a/b\n", {"a/cpu.max": HALF_A_CORE, "a/b/cpu.max": NO_LIMIT}),
        ("0::/of/the/host\n", {"cpu.max": HALF_A_CORE}),
        ("4:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}),
    ],
    ids=["in a container", "the limit is further up", "the host's path", "version 1"],
)
def test_a_share_of_the_cores_bounds_the_threads(groups: Path, own: str, files: dict[str, str]) -> None:
    write(groups, own, files)
    assert container.usable_cores() == 1


@pytest.mark.parametrize("share", ["max 100000", f"{(CORES + 1) * 100000} 100000", f"{CORES * 100000 - 1000} 100000", "", "nonsense"])
def test_a_larger_share_or_none_leaves_all_cores(groups: Path, share: str) -> None:
    write(groups, "0::/\n", {"cpu.max": share})
    assert container.usable_cores() == CORES


@pytest.mark.parametrize(
    ("own", "files"),
    [("0::/a\n", {"a/memory.max": "1000000"}), ("5:memory:/a\n", {"memory/a/memory.limit_in_bytes": "1000000"})],
)
def test_memory_is_the_containers(groups: Path, own: str, files: dict[str, str]) -> None:
    write(groups, own, files)
    assert container.usable_memory() == 1_000_000


def test_without_control_groups_memory_is_the_machines(groups: Path) -> None:
    assert container.usable_memory() > 1 << 28
    write(groups, "5:memory:/\n0::/\n", {"memory/memory.limit_in_bytes": "9223372036854771712", "memory.max": "max"})
    assert container.usable_memory() > 1 << 28

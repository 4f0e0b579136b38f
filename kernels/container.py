"""What a container lets this process have of the machine. Control groups of version 2, and of version 1 where they are still in use.

The machine's own numbers do not show it: under `docker run --cpus 2 --memory 4g` on 64 cores, 64 threads would share two cores' time, and
a cache of an eighth of the memory would end the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may run on at once: those of its affinity, or as many as its share of their time comes to."""
    cores = len(os.sched_getaffinity(0))
    shares = [share for group in _groups("cpu") if (share := _cpu_share(group)) is not None]
    return min(cores, max(1, round(min(shares)))) if shares else cores


def usable_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or the container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for group in _groups("memory") if (limit := _memory_limit(group)) is not None]
    return min([total, *limits])


def _groups(controller: str) -> Iterator[Path]:
    """The group that `controller` has this process in, and those around it: each may set a limit."""
    for line in _read(OWN_GROUPS).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root = GROUPS
        elif controller in controllers.split(","):
            root = GROUPS / controller
        else:
            continue
        # A container sees its own group as the root, and its path sometimes as the host does: then only the root is there.
        own = root / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group == root or root in group.parents)


def _cpu_share(group: Path) -> float | None:
    """Seconds of processor time in a second; None: no limit."""
    quota, period = [*_read(group / "cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    if not quota.isdecimal() or not period.isdecimal():  # "max", or -1
        return None
    return int(quota) / max(1, int(period))


def _memory_limit(group: Path) -> int | None:
    limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() else None


def _read(path: Path) -> str:
    """Empty where there is no such file, as on the root group and on systems without control groups."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

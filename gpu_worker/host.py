"""What this process may use of the machine: memory and cores, with the limits of its control group.

Owns the reading of the system's files; knows no device and no model. Invariant: a limit set on this process
counts, not what the machine has.
"""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

CGROUP = Path("/sys/fs/cgroup")


def memory(root: Path = CGROUP) -> tuple[int, int]:
    """(total, free) in bytes: physical memory, or the control group's limit where that is lower."""
    machine = psutil.virtual_memory()
    total, free = int(machine.total), int(machine.available)
    limit, used = cgroup_memory(root)
    if limit is not None and limit < total:
        total, free = limit, min(free, max(limit - used, 0))
    return total, free


def cgroup_memory(root: Path = CGROUP) -> tuple[int | None, int]:
    """(limit, used) in bytes of this process's control group, version 2 or 1; limit None when there is none.

    File cache that the kernel can drop does not count as used.
    """
    for limit_name, used_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(root / limit_name), _number(root / used_name)
        if limit is not None and used is not None:
            return limit, max(used - _cache_bytes((root / used_name).parent / "memory.stat", cache_key), 0)
    return None, 0


def default_threads(root: Path = CGROUP) -> int:
    """One fewer than the cores this process may run on, at least one.

    A team of threads waits for its slowest at every barrier, and one busy core makes that milliseconds.
    """
    return max(usable_cores(root) - 1, 1)


def usable_cores(root: Path = CGROUP) -> int:
    """Cores in this process's affinity mask, or the control group's quota in whole cores where that is
    lower.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return max(min(cores, int(quota) // int(period)), 1)
    except (OSError, ValueError):
        return cores


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cache_bytes(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)

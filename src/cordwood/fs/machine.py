"""The memory and cores of this machine, or of this process's container."""

from __future__ import annotations

import functools
import os
import resource

from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem

#: Files with the memory limit of a Linux container, a number or `max`; for cgroups version 2 and version 1.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Files with its CPU limit: microseconds of CPU time, on all cores, per period, and the period in microseconds; in one
#: file (version 2) or two (version 1).
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
_CPU_LIMITS_V1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


@functools.cache
def memory_bytes() -> int:
    """Return the bytes of memory of this machine, or the limit of this process's container."""
    return container_memory_bytes(PosixFileSystem(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def local_cores() -> int:
    """Return the number of cores that this process or its container may use, as Java counts them for `local[*]`."""
    return container_cores(PosixFileSystem(), len(os.sched_getaffinity(0)))


def open_files_max() -> int:
    """Return the number of log files that this process may keep open: half of its limit, at most 50,000."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(50_000, limit // 2) if limit > 0 else 50_000


def container_memory_bytes(fs: Store, machine_bytes: int) -> int:
    """Return the lowest memory limit of the container in bytes, at most `machine_bytes`."""
    lowest = machine_bytes
    for path in CONTAINER_LIMITS:
        try:
            lowest = min(lowest, int(_told(fs, path)))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    return lowest


def container_cores(fs: Store, machine_cores: int) -> int:
    """Return the number of cores that the CPU limit keeps busy, rounded up as in Java; at most `machine_cores`."""
    for paths in ((_CPU_LIMIT,), _CPU_LIMITS_V1):
        try:
            time, period = (int(word) for path in paths for word in _told(fs, path).split())
        except (OSError, ValueError):  # no container, or one without a limit
            continue
        if time > 0 and period > 0:
            return min(machine_cores, -(-time // period))
    return machine_cores


def _told(fs: Store, path: str) -> bytes:
    with fs.open(path) as file:
        return file.read(0, 64)

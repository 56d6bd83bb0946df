"""The memory and cores of this machine, or of the container in which this process runs."""

from __future__ import annotations

import functools
import os
import resource

from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem

#: Files in which Linux shows a container its memory limit, a number or `max`; for cgroups version 2 and version 1.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def memory_bytes() -> int:
    """Bytes of memory that this machine has, or that this process's container may use."""
    return container_memory_bytes(PosixFileSystem(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def local_cores() -> int:
    """How many cores this process may use; Spark's `local[*]` runs that many tasks at once."""
    return len(os.sched_getaffinity(0))


def open_files_max() -> int:
    """How many files of logs this process may keep open: half of its limit, at most 50,000."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(50_000, limit // 2) if limit > 0 else 50_000


def container_memory_bytes(fs: Store, machine_bytes: int) -> int:
    """The lowest memory limit of the container in bytes, at most `machine_bytes`."""
    lowest = machine_bytes
    for path in CONTAINER_LIMITS:
        try:
            with fs.open(path) as file:
                lowest = min(lowest, int(file.read(0, 32)))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    return lowest

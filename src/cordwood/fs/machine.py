"""What the machine has, or the container that we run in."""

from __future__ import annotations

import functools
import os

from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem

#: Where Linux tells a container its limit: a number or `max`; with cgroups of version 2 and of version 1.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def memory_bytes() -> int:
    """Bytes of memory that this machine has, or that its container may use."""
    return container_memory_bytes(PosixFileSystem(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def container_memory_bytes(fs: Store, machine_bytes: int) -> int:
    """The lowest limit that a container has; what the machine has without one."""
    lowest = machine_bytes
    for path in CONTAINER_LIMITS:
        try:
            with fs.open(path) as file:
                lowest = min(lowest, int(file.read(0, 32)))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    return lowest

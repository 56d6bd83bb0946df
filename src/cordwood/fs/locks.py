"""Who holds a lock on a file, told without opening it.

A broker holds `.lock` in its log directory by a POSIX record lock. Opening and closing that file anywhere in a process
that holds the lock would drop it, so nothing may open it just to look. Linux lists all locks in `/proc/locks`, by
device and inode; elsewhere nobody can be seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock.

    Attributes:
        pid: 0 or less when it runs where we cannot see it, such as in another container.
        program: its name, empty if unknown.
    """

    pid: int
    program: str

    @property
    def is_broker(self) -> bool:
        """Whether it is, or may be, a Kafka broker. Brokers run on Java; who cannot be seen may be one."""
        return self.program in ("java", "")

    def __str__(self) -> str:
        return f"{self.program or 'a process'} ({f'pid {self.pid}' if self.pid > 0 else 'not visible from here'})"


def lock_holder(device: int, inode: int) -> LockHolder | None:
    """Who holds a lock on a file, if anyone who can be seen does."""
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 4242 fd:01:131077 0 EOF
        fields = line.split()
        if len(fields) >= 6 and fields[5] == wanted and fields[1] != "->":
            pid = int(fields[4])
            return LockHolder(pid, _program(pid))
    return None


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""

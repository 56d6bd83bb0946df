"""What this process and all that it started take: CPU seconds, and memory at its peak. From /proc, so on Linux only."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Self

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: How often memory is looked at.
_SECONDS = 0.05
_PROC = Path("/proc")


class Usage:
    """Measures from the begin to the end of a `with` block.

    Attributes:
        cpu_seconds: of all processes, also of those that ended meanwhile, but not of looking at them.
        peak_bytes: the most memory of all processes together at one of the moments when it was looked at; what
            processes share counts once.
    """

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        self.peak_bytes = 0
        self._looking_seconds = 0.0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._before = _cpu_seconds()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self.cpu_seconds = _cpu_seconds() - self._before - self._looking_seconds

    def _look(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, sum(memory_bytes(pid) for pid in _processes()))
            self._looking_seconds = time.thread_time()
            if self._ended.wait(_SECONDS):
                return


def _processes() -> list[int]:
    """This process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:  # grows
        found += children.get(pid, [])
    return found


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty once the process is gone."""
    try:
        # A name may be any bytes.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_seconds() -> float:
    # User and system time, each also of children that ended.
    return sum(int(ticks) for pid in _processes() for ticks in _fields(pid)[11:15]) / _TICKS_PER_SECOND


def memory_bytes(pid: int) -> int:
    """The memory of a process; what it shares with others counts in parts. 0 once the process is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))

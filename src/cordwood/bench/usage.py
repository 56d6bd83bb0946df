"""Measures CPU seconds and peak memory of this process and its descendants. Reads /proc, so it needs Linux."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Self

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Interval between memory samples.
_SECONDS = 0.05
_PROC = Path("/proc")


class Usage:
    """Measures a `with` block.

    Attributes:
        cpu_seconds: CPU time of all processes, including ended ones, without the cost of sampling.
        peak_bytes: largest total memory of all processes in any sample; shared memory counts once.
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
    """Return this process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:  # grows
        found += children.get(pid, [])
    return found


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process has ended."""
    try:
        # A process name may contain any bytes.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_seconds() -> float:
    # User and system time, each including ended children.
    return sum(int(ticks) for pid in _processes() for ticks in _fields(pid)[11:15]) / _TICKS_PER_SECOND


def memory_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of shared memory; 0 if the process has ended."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))

"""Servers that are forks of this process, which has loaded most of what their own forks need."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

#: glibc's variables for a process that works on windows of logs, which are let go and taken all the time. It keeps the
#: memory for the next, as pages that the system takes back and clears again cost as much as reading into them.
MALLOC: Mapping[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
#: The parameters of mallopt by these variables, which glibc looks at only when a program starts.
_PARAMETERS = {"MALLOC_ARENA_MAX": -8, "MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
#: Signals whose handlers must not run in a server.
SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: Threads of libraries that know of forks.
_FORK_SAFE = frozenset({"jemalloc_bg_thd"})


def can_fork() -> bool:
    """Whether this process has one thread, so that a fork of it is whole, with nothing held by other threads."""
    if sys.platform != "linux":
        return False
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            names.append((task / "comm").read_text().strip())
    return sum(name not in _FORK_SAFE for name in names) == 1


def fork_server(serve: Callable[[], None], kept: set[int]) -> int:
    """Fork a process that serves and ends; it ignores `SIGNALS`. Returns its number.

    Args:
        kept: descriptors that it uses. All others are closed in it, but the output.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            try:
                _close_others(kept)
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                serve()
            finally:
                # Nothing of the process that this is a copy of may run.
                os._exit(0)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_others(kept: set[int]) -> None:
    """Close all files but some, and the output: what holds a lock on one of them must end with its process."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    at = 3
    for number in sorted(kept):
        os.closerange(at, number)
        at = number + 1
    os.closerange(at, os.sysconf("SC_OPEN_MAX"))


def set_malloc(variables: Mapping[str, str]) -> None:
    """Let malloc of this process do what these variables say; a fork has no other start."""
    with contextlib.suppress(AttributeError):  # another malloc than glibc's
        mallopt = ctypes.CDLL(None).mallopt
        for name, parameter in _PARAMETERS.items():
            if name in variables:
                mallopt(parameter, int(variables[name]))

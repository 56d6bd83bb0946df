"""Servers that are forks of this process, which has loaded most modules that their own forks need."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

#: glibc's variables for a process that allocates and frees windows of logs all the time. With them, glibc reuses the
#: memory: returning pages to the system and getting cleared ones again costs as much as reading into them.
MALLOC: Mapping[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
#: The mallopt parameters of these variables, which glibc reads only when a program starts.
_PARAMETERS = {"MALLOC_ARENA_MAX": -8, "MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
#: Signals whose handlers must not run in a server.
SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: Threads of libraries that handle forks.
_FORK_SAFE = frozenset({"jemalloc_bg_thd"})


def can_fork() -> bool:
    """Return whether this process has one thread, so that a fork is complete and other threads hold no locks in it."""
    if sys.platform != "linux":
        return False
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            names.append((task / "comm").read_text().strip())
    return sum(name not in _FORK_SAFE for name in names) == 1


def fork_server(serve: Callable[[], None], kept: set[int]) -> int:
    """Fork a process that runs `serve` and ends, ignoring `SIGNALS`; return its process id.

    Args:
        kept: descriptors that it uses. The child closes all others except stdout and stderr.
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
                # Run no code of the parent process, which this is a copy of.
                os._exit(0)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_others(kept: set[int]) -> None:
    """Close all other files except the output: an inherited lock file would keep a lock after its process has ended."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    at = 3
    for number in sorted(kept):
        os.closerange(at, number)
        at = number + 1
    os.closerange(at, os.sysconf("SC_OPEN_MAX"))


def set_malloc(variables: Mapping[str, str]) -> None:
    """Apply these variables to malloc in this process: a fork does not read them again."""
    with contextlib.suppress(AttributeError):  # another malloc than glibc's
        mallopt = ctypes.CDLL(None).mallopt
        for name, parameter in _PARAMETERS.items():
            if name in variables:
                mallopt(parameter, int(variables[name]))

"""Servers that fork processes on request: the workers of a pool, and Spark's daemons of Python workers.

Loading the kernels takes a Python two CPU seconds, so a server loads them once, and each fork has them:

    this process ──asks──► server ──forks──► a process for each request

If this process has one thread, the server itself is a fork of it. A server has one thread, too, so that its forks are
complete. It ends when it is told to, or when this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
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
#: Interval for checking that the parent is alive: a fork of the parent may keep the socket open after its end.
_LOOK_SECONDS = 1.0
_ENDS_SECONDS_MAX = 2.0
_ENDS_PAUSE_SECONDS = 0.002


class ForkServer:
    """This process's handle of a server."""

    def __init__(self, start: Callable[[socket.socket], int]) -> None:
        """Start the server.

        Args:
            start: starts a process that calls `serve` with the given end of a socket, and returns its process id.
        """
        self._control, its = socket.socketpair()
        with its:
            self._pid = start(its)

    def fork(self, end: socket.socket) -> None:
        """Make the server fork a process that uses this end of a socket.

        Raises:
            OSError: the server was killed.
        """
        socket.send_fds(self._control, [b"f"], [end.fileno()])

    def end(self) -> None:
        """End the server; kill it and its children if it does not end in time."""
        with contextlib.suppress(OSError):  # the server was killed
            self._control.send(b"e")  # closing is not enough, as a fork of this process may keep the socket open
        self._control.close()
        deadline = time.monotonic() + _ENDS_SECONDS_MAX
        try:
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    children = _children(self._pid)
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    for child in children:  # a child that was just forked may not end with the server
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(child, signal.SIGKILL)
                    return
                time.sleep(_ENDS_PAUSE_SECONDS)
        except ChildProcessError:  # other code in this process waits for all of its children
            pass


def _children(pid: int) -> list[int]:
    """Return the children of a single-threaded process; empty if the system does not provide them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def can_fork() -> bool:
    """Return whether this process has one thread, so that a fork is complete and other threads hold no locks in it."""
    if sys.platform != "linux":
        return False
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            names.append((task / "comm").read_text().strip())
    return sum(name not in _FORK_SAFE for name in names) == 1


def fork_server(serve: Callable[[], object], kept: set[int]) -> int:
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


def load() -> None:
    """Import the modules that tasks need, with their kernels."""
    # Imported here, so that the process that starts a server does not wait for it.
    import cordwood.tasks.tasks  # noqa: F401
    from cordwood.kernels import load_all
    from cordwood.kernels.crc import crc32c

    load_all()
    # numba initializes itself at the first call.
    crc32c(0, 0)


def serve(
    control: socket.socket, parent: int, run: Callable[[socket.socket], None], listener: socket.socket | None = None
) -> set[int]:
    """Run as a server: fork a process for each request, until told to end, or until the parent ends.

    Args:
        control: the server's end of its `ForkServer`'s socket.
        parent: process id of the process that started this one.
        run: runs in each fork, with the socket of the request; then the fork ends.
        listener: each connection to this socket is a request, too.

    Returns:
        the process ids of the forks that are still running.
    """
    load()
    # Forks run the garbage collector after each task. Exclude all objects that exist now: they are never freed.
    gc.freeze()
    sources = [control] if listener is None else [control, listener]
    children: set[int] = set()
    while os.getppid() == parent:
        ready, _, _ = select.select(sources, [], [], _LOOK_SECONDS)
        reap(children)
        if control in ready:
            _, files, _, _ = socket.recv_fds(control, 1, 1)
            if not files:
                break
            request = socket.socket(fileno=files[0])
        elif listener in ready:
            request, _ = listener.accept()
        else:
            continue
        with request:
            children.add(_fork(sources, run, request))
    return children


def _fork(closed: Iterable[socket.socket], run: Callable[[socket.socket], None], request: socket.socket) -> int:
    child = os.fork()
    if child == 0:
        try:
            for one in closed:
                one.close()
            run(request)
        finally:
            os._exit(0)  # see `fork_server`
    return child


def reap(children: set[int]) -> None:
    """Remove the children that have ended. Until then the system does not reuse their process ids."""
    for child in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                continue
        children.discard(child)


def set_malloc(variables: Mapping[str, str]) -> None:
    """Apply these variables to malloc in this process: a fork does not read them again."""
    with contextlib.suppress(AttributeError):  # another malloc than glibc's
        mallopt = ctypes.CDLL(None).mallopt
        for name, parameter in _PARAMETERS.items():
            if name in variables:
                mallopt(parameter, int(variables[name]))

"""The server: it forks a worker for each socket that it is sent, and ends its workers when its own socket closes."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

#: How often the server looks whether its parent is there: a fork of that process may keep the socket open.
_LOOK_SECONDS = 1.0
_REAP_SECONDS_MAX = 1.0
_REAP_PAUSE_SECONDS = 0.002


def serve(control: socket.socket, parent: int) -> None:
    """Fork workers until there is nobody who wants any.

    Args:
        control: brings sockets.
        parent: the process that started this one.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    fork_worker = _loaded()
    # Workers collect garbage after each task. Exclude all objects that exist now: they are never freed.
    gc.freeze()
    children: set[int] = set()
    while os.getppid() == parent:
        ready, _, _ = select.select([control], [], [], _LOOK_SECONDS)
        _reap(children)
        if ready:
            message, ends, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            with socket.socket(fileno=ends[0]) as end:
                children.add(fork_worker(end, control))
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    # One that waits for a disk may take long to end.
    deadline = time.monotonic() + _REAP_SECONDS_MAX
    while children and time.monotonic() < deadline:
        time.sleep(_REAP_PAUSE_SECONDS)
        _reap(children)


def _loaded() -> Callable[[socket.socket, socket.socket], int]:
    """Load what workers need; returns what forks one."""
    # Only here, so that the process that starts the server need not wait for it.
    import cordwood.jobs.packing
    import cordwood.tables.newest  # noqa: F401
    from cordwood.kernels.crc import crc32c
    from cordwood.pool.worker import work

    # With the first call numba prepares itself.
    crc32c(0, 0)

    def fork_worker(end: socket.socket, control: socket.socket) -> int:
        server = os.getpid()
        child = os.fork()
        if child:
            return child
        try:
            control.close()
            work(end, server)
        finally:
            # Nothing of the process that this is a copy of may run.
            os._exit(0)

    return fork_worker


def _reap(children: set[int]) -> None:
    """Remove those that have ended. Until then their numbers are not given to other processes."""
    for child in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                continue
        children.discard(child)


def main() -> None:
    """Be the server of the process that started this program."""
    file, parent, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    sys.path[:] = path
    with socket.socket(fileno=file) as control:
        serve(control, parent)


if __name__ == "__main__":
    main()

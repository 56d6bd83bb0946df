"""The server: forks a worker for each socket it receives, and ends its workers when its own socket closes."""

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

#: Interval for checking that the parent is alive: a fork of the parent may keep the socket open after its end.
_LOOK_SECONDS = 1.0
_REAP_SECONDS_MAX = 1.0
_REAP_PAUSE_SECONDS = 0.002


def serve(control: socket.socket, parent: int) -> None:
    """Fork workers on request, until the control socket closes or the parent ends.

    Args:
        control: receives the workers' sockets.
        parent: process id of the process that started this one.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends these to all processes; the parent handles them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    fork_worker = _loaded()
    # Workers run the garbage collector after each task. Exclude all objects that exist now: they are never freed.
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
    # A worker that waits for a disk may take long to end.
    deadline = time.monotonic() + _REAP_SECONDS_MAX
    while children and time.monotonic() < deadline:
        time.sleep(_REAP_PAUSE_SECONDS)
        _reap(children)


def _loaded() -> Callable[[socket.socket, socket.socket], int]:
    """Import the modules that workers need; return a function that forks a worker."""
    # Imported here, so that the process that starts the server does not wait for it.
    import cordwood.cleaning.engine.exchange
    import cordwood.cleaning.engine.task
    import cordwood.tasks.packing  # noqa: F401
    from cordwood.kernels.crc import crc32c
    from cordwood.tasks.pool.worker import work

    # numba initializes itself at the first call.
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
            # Run no code of the parent process, which this is a copy of.
            os._exit(0)

    return fork_worker


def _reap(children: set[int]) -> None:
    """Remove the children that have ended. Until then the system does not reuse their process ids."""
    for child in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                continue
        children.discard(child)


def main() -> None:
    """Run as the server of the process that started this program."""
    file, parent, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    sys.path[:] = path
    with socket.socket(fileno=file) as control:
        serve(control, parent)


if __name__ == "__main__":
    main()

"""Spark's daemon that forks Python workers, with the kernels loaded before it forks.

Spark starts `python -m cordwood.tasks.spark.daemon`. Each worker is a fork of it, so modules are loaded only once, or
not at all if `forking` provides the daemon.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cordwood.tasks.forks import SIGNALS, fork_server, set_malloc

# ---- forking ---------------------------------------------------------------------------------------------------------

# Let Spark's daemon of Python workers be a fork of the process that started Spark, which has loaded the kernels.
#
# Loading the kernels takes a Python two CPU seconds. So before the process that starts Spark creates threads, it forks
# a
# server. Spark starts its daemon as a new Python, as always; that Python passes its environment and standard streams to
# the server and waits. The server forks the process that is the daemon from then on. Without a server, the new Python
# itself becomes the daemon.
#
# The daemon ends when its standard input closes, that is when Java ends; the server ends when the socket to its parent
# closes.

#: The environment variable with the path of the server's socket.
VARIABLE = "CORDWOOD_FORK_SERVER"
#: Interval for checking that the parent is alive: a fork of the parent may keep the socket open after its end.
_LOOK_SECONDS = 1.0
_MESSAGE_MAX = 1 << 20


@contextlib.contextmanager
def _in_short(path: str) -> Iterator[str]:
    """Yield a short path of a socket, through its opened folder: a socket's path has at most 107 bytes."""
    folder, _, name = path.rpartition("/")
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


def socket_in(folder: str) -> str:
    """Return the path of the server's socket in a folder."""
    return f"{folder}/fork-server"


class ForkServer:
    """The parent's handle of the server."""

    def __init__(self, folder: str, be_daemon: Callable[[], None]) -> None:
        """Fork the server.

        Args:
            folder: folder for its socket; must not be accessible to other users.
        """
        self._control, its = socket.socketpair()
        with socket.socket(socket.AF_UNIX) as listener, its:
            with _in_short(socket_in(folder)) as path:
                listener.bind(path)
            listener.listen()
            parent = os.getpid()
            self._pid = fork_server(
                lambda: _serve(listener, its, parent, be_daemon), kept={listener.fileno(), its.fileno()}
            )

    def end(self) -> None:
        """End the server; a daemon ends with Java."""
        with contextlib.suppress(OSError):  # the server was killed
            self._control.send(b"e")  # closing is not enough, as a fork of this process may keep the socket open
        self._control.close()
        with contextlib.suppress(ChildProcessError):  # other code in this process waits for all of its children
            os.waitpid(self._pid, 0)


def _serve(listener: socket.socket, control: socket.socket, parent: int, be_daemon: Callable[[], None]) -> None:
    """Fork a daemon for each Python process that requests one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the daemons
    gc.freeze()
    while os.getppid() == parent:
        ready, _, _ = select.select([listener, control], [], [], _LOOK_SECONDS)
        if control in ready:
            return
        if listener in ready:
            asking, _ = listener.accept()
            with asking:
                if os.fork() == 0:
                    try:
                        listener.close()
                        control.close()
                        _take_over(asking)
                        be_daemon()
                    finally:
                        os._exit(0)


def _take_over(asking: socket.socket) -> None:
    """Replace this process's environment and standard streams by those of the requesting Python."""
    message, streams, _, _ = socket.recv_fds(asking, _MESSAGE_MAX, 3)
    said = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(said["folder"])
    os.environ.clear()
    os.environ.update(said["environment"])
    sys.argv[:] = said["arguments"]
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    set_malloc(os.environ)


def hand_over() -> bool:
    """Request a daemon from the server and wait for its end; return False if there is no server."""
    path = os.environ.get(VARIABLE)
    if not path:
        return False
    said = {"folder": os.getcwd(), "environment": dict(os.environ), "arguments": sys.argv}
    message = json.dumps(said).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            with _in_short(path) as short:
                server.connect(short)
        except OSError:
            return False
        # The server reads one message of limited size; if it is sent only in part, it is too large.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(message))
        if socket.send_fds(server, [message], [0, 1, 2]) < len(message):
            return False
        server.recv(1)
    return True


def without_zips(paths: Sequence[str]) -> list[str]:
    """Return the module paths without the zip copies of pyspark that an installed pyspark contains.

    Spark puts the zips first. Python does not cache compiled modules from a zip, so every process would compile its
    pyspark imports again, which takes seconds. The installed package is the same code, and its compiled files are
    cached.
    """

    def is_installed(path: str) -> bool:
        # …/site-packages/pyspark/python/lib/pyspark.zip
        parents = Path(path).parents
        return path.endswith(".zip") and len(parents) > 3 and parents[2].name == "pyspark" and str(parents[3]) in paths

    return [path for path in paths if not is_installed(path)]


def load() -> None:
    """Import the modules that workers need."""
    import cordwood.tasks.tasks  # noqa: F401 - for the kernels of tasks
    from cordwood.kernels.crc import crc32c

    # numba initializes itself at the first call.
    crc32c(0, 0)


def be_daemon() -> None:
    """Fork workers until Spark closes standard input."""
    load()
    # pyspark.worker imports neither pandas nor pyarrow: they may start threads, and forking requires a single thread.
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    # Workers run the garbage collector after each task. Exclude all objects that exist now: they are never freed.
    gc.freeze()
    manager()


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    if not hand_over():
        be_daemon()

"""Spark's daemon that forks Python workers, with the kernels loaded before it forks.

Spark starts `python -m cordwood.tasks.spark.daemon`, whose forks are the workers. If the process that starts Spark has
one thread, it has forked a server before (`tasks.forks`), which has the kernels already. Then the new Python passes its
environment and standard streams to that server and waits; a fork of the server is the daemon from then on. Without a
server, the new Python itself becomes the daemon.

The daemon ends when its standard input closes, that is when Java ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cordwood.tasks.forks import SIGNALS, ForkServer, fork_server, load, serve, set_malloc

#: The environment variable with the path of the server's socket.
VARIABLE = "CORDWOOD_FORK_SERVER"
_MESSAGE_MAX = 1 << 20


def _be_daemon() -> None:
    """Fork workers until Spark closes standard input."""
    load()
    # pyspark.worker imports neither pandas nor pyarrow: they may start threads, and forking requires a single thread.
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    # Workers run the garbage collector after each task. Exclude all objects that exist now: they are never freed.
    gc.freeze()
    manager()


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


# ---- a daemon of the process that starts Spark -----------------------------------------------------------------------


def socket_in(folder: str) -> str:
    """Return the path of the server's socket in a folder."""
    return f"{folder}/fork-server"


def fork_daemons(folder: str) -> ForkServer:
    """Fork a server that forks a daemon for each Python process that requests one.

    Args:
        folder: folder for its socket; must not be accessible to other users.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        with _in_short(socket_in(folder)) as path:
            listener.bind(path)
        listener.listen()
        parent = os.getpid()

        def start(control: socket.socket) -> int:
            kept = {listener.fileno(), control.fileno()}
            return fork_server(lambda: serve(control, parent, _take_over, listener), kept)

        return ForkServer(start)


def _take_over(asking: socket.socket) -> None:
    """Be the daemon in the place of the requesting Python, with its environment and standard streams."""
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
    _be_daemon()


def _hand_over() -> bool:
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


@contextlib.contextmanager
def _in_short(path: str) -> Iterator[str]:
    """Yield a short path of a socket, through its opened folder: a socket's path has at most 107 bytes."""
    folder, _, name = path.rpartition("/")
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    if not _hand_over():
        _be_daemon()

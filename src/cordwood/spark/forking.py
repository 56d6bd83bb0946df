"""Lets Spark's daemon of Python workers be a fork of the process that started Spark, which has the kernels already.

A Python that loads the kernels takes two CPU seconds. So before the process that starts Spark has threads, it forks a
server. Spark starts its daemon as a new Python, as always; that one hands its environment and its standard streams to
the server, whose fork is the daemon from then on, and waits for its end. Without a server it is the daemon itself.

The daemon ends when its standard input closes, that is with Java; the server when its socket to the process that it is
a fork of closes.
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
from collections.abc import Callable, Iterator

from cordwood.forks import SIGNALS, fork_server, set_malloc

#: The environment variable with the path of the server's socket.
VARIABLE = "CORDWOOD_FORK_SERVER"
#: How often the server looks whether its parent is there: a fork of that process may keep the socket open.
_LOOK_SECONDS = 1.0
_MESSAGE_MAX = 1 << 20


@contextlib.contextmanager
def _in_short(path: str) -> Iterator[str]:
    """A path of a socket through its folder, which is open in the block: a socket's path has at most 107 bytes."""
    folder, _, name = path.rpartition("/")
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


def socket_in(folder: str) -> str:
    """The path of the server's socket in a folder."""
    return f"{folder}/fork-server"


class ForkServer:
    """The server, as the process that it is a fork of sees it."""

    def __init__(self, folder: str, be_daemon: Callable[[], None]) -> None:
        """Fork it.

        Args:
            folder: where its socket is made; no other user may enter it.
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
        with contextlib.suppress(OSError):  # somebody killed it
            self._control.send(b"e")  # a fork of this process may keep the socket open
        self._control.close()
        with contextlib.suppress(ChildProcessError):  # somebody else waits for all children of this process
            os.waitpid(self._pid, 0)


def _serve(listener: socket.socket, control: socket.socket, parent: int, be_daemon: Callable[[], None]) -> None:
    """Fork a daemon for each Python that asks for one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for daemons
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
    """Take the environment and the standard streams of the Python that asks."""
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
    """Let a fork of the server be the daemon in the place of this process, and wait for its end; False: none is."""
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
        # A message that does not arrive in one piece is too large for the server.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(message))
        if socket.send_fds(server, [message], [0, 1, 2]) < len(message):
            return False
        server.recv(1)
    return True

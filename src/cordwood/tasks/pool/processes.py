"""Control the processes of a pool from the process that uses it: the server, and workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from cordwood.common.forks import can_fork, fork_server
from cordwood.tasks.pool.channel import Channel
from cordwood.tasks.pool.server import serve

#: A worker that does not read its task within this time is stopped or hangs.
_SEND_SECONDS_MAX = 30.0
_ENDS_SECONDS_MAX = 2.0
_ENDS_PAUSE_SECONDS = 0.002
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from cordwood.tasks.pool.server import main; main()"


class Worker:
    """A process that runs tasks.

    Attributes:
        pid: process id; 0 until the worker has sent it.
    """

    def __init__(self, channel: Channel) -> None:
        self.pid = 0
        self.channel = channel

    def kill(self) -> None:
        """Kill the process at once, even if it is busy."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.channel.close()


class Processes:
    """Starts workers, and ends all of them. Several threads may use it."""

    def __init__(self) -> None:
        """Set up without starting a process."""
        self._server: _Server | None = None
        self._lock = threading.Lock()

    def start_server(self) -> None:
        """Start the server before the first worker is needed."""
        with self._lock:
            self._server = _Server()

    def start_worker(self) -> Worker:
        """Start a worker, and the server if it is not running."""
        mine, its = socket.socketpair()
        with its, self._lock:
            if self._server is not None:
                try:
                    self._server.fork(its)
                except OSError:  # the server was killed, and with it all of its workers
                    self._server.end()
                    self._server = None
            if self._server is None:
                self._server = _Server()
                self._server.fork(its)
        mine.settimeout(_SEND_SECONDS_MAX)
        return Worker(Channel(mine))

    def end(self) -> None:
        """End the server and all workers at once."""
        with self._lock:
            if self._server is not None:
                self._server.end()
                self._server = None


class _Server:
    """The process that forks workers."""

    def __init__(self) -> None:
        self._control, its = socket.socketpair()
        with its:
            parent = os.getpid()
            self._pid = fork_server(lambda: serve(its, parent), kept={its.fileno()}) if can_fork() else _start(its)

    def fork(self, end: socket.socket) -> None:
        """Make the server fork a worker that uses this end of a socket."""
        socket.send_fds(self._control, [b"f"], [end.fileno()])

    def end(self) -> None:
        """End the server and its workers; kill it if it does not end in time."""
        self._control.close()
        deadline = time.monotonic() + _ENDS_SECONDS_MAX
        try:
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    workers = _children(self._pid)
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    for worker in workers:  # a worker that was just forked may not end with the server
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(worker, signal.SIGKILL)
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


def _start(end: socket.socket) -> int:
    """Start the server as a new Python process, as this process has threads and must not fork."""
    words = [sys.executable, "-c", _PROGRAM, str(end.fileno()), str(os.getpid()), *sys.path]
    # numpy's linear algebra library, which no task uses, would start threads.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    running = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()])
    running.returncode = 0  # `_Server.end` waits for it
    return running.pid

"""The processes of a pool, as the process that uses them sees them: the server, and workers."""

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

from cordwood.forks import can_fork, fork_server
from cordwood.pool.channel import Channel
from cordwood.pool.server import serve

#: A worker that does not take its task for so long is stopped or hangs.
_SEND_SECONDS_MAX = 30.0
_ENDS_SECONDS_MAX = 2.0
_ENDS_PAUSE_SECONDS = 0.002
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from cordwood.pool.server import main; main()"


class Worker:
    """A process that runs tasks.

    Attributes:
        pid: of the process; 0: it has not said yet.
    """

    def __init__(self, channel: Channel) -> None:
        self.pid = 0
        self.channel = channel

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.channel.close()


class Processes:
    """Starts workers, and ends them all. Used by several threads."""

    def __init__(self) -> None:
        """Does not start anything yet."""
        self._server: _Server | None = None
        self._lock = threading.Lock()

    def start_server(self) -> None:
        """Start the server before there is a worker to start."""
        with self._lock:
            self._server = _Server()

    def start_worker(self) -> Worker:
        """Start a worker; and the server, if it does not run."""
        mine, its = socket.socketpair()
        with its, self._lock:
            if self._server is not None:
                try:
                    self._server.fork(its)
                except OSError:  # somebody killed it, and so all of its workers
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
        """Let it fork a worker for an end of a socket."""
        socket.send_fds(self._control, [b"f"], [end.fileno()])

    def end(self) -> None:
        """End it, and its workers; kill it if it does not end by itself."""
        self._control.close()
        deadline = time.monotonic() + _ENDS_SECONDS_MAX
        try:
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    workers = _children(self._pid)
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    for worker in workers:  # one that had just begun may not end with the server
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(worker, signal.SIGKILL)
                    return
                time.sleep(_ENDS_PAUSE_SECONDS)
        except ChildProcessError:  # somebody else waits for all children of this process
            pass


def _children(pid: int) -> list[int]:
    """Processes that a process of one thread has started; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _start(end: socket.socket) -> int:
    """Make the server of a new Python, as this process has threads."""
    words = [sys.executable, "-c", _PROGRAM, str(end.fileno()), str(os.getpid()), *sys.path]
    # numpy's library of linear algebra, which no task uses, would start threads.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    running = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()])
    running.returncode = 0  # `_Server.end` waits for it
    return running.pid

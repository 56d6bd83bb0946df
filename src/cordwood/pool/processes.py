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

from cordwood.pool.channel import Channel
from cordwood.pool.server import serve

#: A worker that does not take its task for so long is stopped or hangs.
_SEND_SECONDS_MAX = 30.0
_ENDS_SECONDS_MAX = 2.0
_ENDS_PAUSE_SECONDS = 0.002
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from cordwood.pool.server import main; main()"
#: Threads of libraries that know of forks.
_FORK_SAFE = frozenset({"jemalloc_bg_thd"})
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


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
            self._pid = _fork(its) if _is_alone() else _start(its)

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
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    return
                time.sleep(_ENDS_PAUSE_SECONDS)
        except ChildProcessError:  # somebody else waits for all children of this process
            pass


def _is_alone() -> bool:
    """Whether this process has one thread, so that a fork of it is whole, with nothing held by other threads."""
    if sys.platform != "linux":
        return False
    names = [name for task in Path("/proc/self/task").iterdir() if (name := (task / "comm").read_text().strip())]
    return len([name for name in names if name not in _FORK_SAFE]) == 1


def _fork(end: socket.socket) -> int:
    """Make the server of a fork of this process, which has loaded most of what workers need."""
    parent = os.getpid()
    # The handlers of this process must not run in the server.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            try:
                _let_go(end.fileno())
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                serve(end, parent)
            finally:
                # Nothing of the process that this is a copy of may run.
                os._exit(0)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _let_go(kept: int) -> None:
    """Close all files but one, and the output: what holds a lock on one of them must end with its process."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _start(end: socket.socket) -> int:
    """Make the server of a new Python, as this process has threads."""
    words = [sys.executable, "-c", _PROGRAM, str(end.fileno()), str(os.getpid()), *sys.path]
    # numpy's library of linear algebra, which no task uses, would start threads.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    running = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()])
    running.returncode = 0  # `_Server.end` waits for it
    return running.pid

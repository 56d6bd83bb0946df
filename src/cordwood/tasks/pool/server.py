"""The server: forks a worker for each socket it receives, and ends its workers when its own socket closes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.tasks.forks import MALLOC, set_malloc
from cordwood.tasks.runner import Numbered, Step

# ---- worker ----------------------------------------------------------------------------------------------------------

# A worker: a fork of the server that runs steps of tasks until the other end of its socket closes.

# ---- channel ---------------------------------------------------------------------------------------------------------

# Send values between two processes through a socket: a length in eight bytes, then a pickle.

_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20


class Channel:
    """One end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._arrived = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor, for `selectors`."""
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Whether an idle worker is still running: its socket is neither closed nor readable."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """Close the socket, which signals the end to the other process."""
        self._socket.close()

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            OSError: the other process has ended, or does not read before the timeout.
        """
        data = pickle.dumps(value)
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def receive(self) -> Any:
        """Wait for a value from a process that sends one at a time.

        Raises:
            EOFError: the other process has ended.
        """
        while not (values := self.read()):
            pass
        (value,) = values
        return value

    def read(self) -> list[Any]:
        """Wait until bytes arrive, and return all complete values.

        Raises:
            EOFError: the other process has ended.
        """
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except ConnectionError:
            piece = b""
        if not piece:
            raise EOFError
        self._arrived += piece
        whole = []
        while len(self._arrived) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._arrived)[0]
            if len(self._arrived) < end:
                break
            whole.append(bytes(self._arrived[_LENGTH.size : end]))
            del self._arrived[:end]
        return [pickle.loads(one) for one in whole]


_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A step of a task, with its input."""

    step: Step
    items: Sequence[Numbered]


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """The outcomes of a request, or its error.

    Attributes:
        error: exception raised by the step.
        trace: traceback of the exception, as text.
    """

    outcomes: Sequence[Numbered] = ()
    error: Exception | None = None
    trace: str = ""


def work(end: socket.socket, server: int) -> None:
    """Run requests until the other end closes the socket.

    Args:
        end: the worker's end of its socket.
        server: process id of the server that forked this process.
    """
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    set_malloc(MALLOC)
    channel = Channel(end)
    with contextlib.suppress(EOFError, OSError):
        channel.send(os.getpid())
        while True:
            channel.send(_answer(channel.receive()))
            # Free the memory held by reference cycles of this task, as the next one needs it.
            gc.collect()


def _answer(pickled: bytes) -> TaskAnswer:
    try:
        request: TaskRequest = pickle.loads(pickled)
        return TaskAnswer(list(request.step(request.items)))
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return TaskAnswer(error=RuntimeError(f"{type(error).__name__}: {error}"), trace=trace)
        return TaskAnswer(error=error, trace=trace)


def _end_with(parent: int) -> None:
    """Make the system kill this process when its parent ends. On systems other than Linux the server does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before the call


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
    import cordwood.tasks.tasks  # noqa: F401
    from cordwood.kernels.crc import crc32c

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

"""The processes of a pool: the server forks workers, and a worker runs steps of tasks until its socket closes."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.tasks import forks
from cordwood.tasks.runner import Numbered, Step

_REAP_SECONDS_MAX = 1.0
_REAP_PAUSE_SECONDS = 0.002
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run as the server of the process that started this program."""
    file, parent, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    sys.path[:] = path
    with socket.socket(fileno=file) as control:
        serve(control, parent)


def serve(control: socket.socket, parent: int) -> None:
    """Fork workers on request; at the end, kill them. See `forks.serve`."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends these to all processes; the parent handles them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = os.getpid()
    children = forks.serve(control, parent, lambda end: _work(end, server))
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    # A worker that waits for a disk may take long to end.
    deadline = time.monotonic() + _REAP_SECONDS_MAX
    while children and time.monotonic() < deadline:
        time.sleep(_REAP_PAUSE_SECONDS)
        forks.reap(children)


# ---- workers ---------------------------------------------------------------------------------------------------------


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


def _work(end: socket.socket, server: int) -> None:
    """Run requests until the other end closes the socket.

    Args:
        end: the worker's end of its socket.
        server: process id of the server that forked this process.
    """
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    forks.set_malloc(forks.MALLOC)
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


# ---- values through a socket -----------------------------------------------------------------------------------------

#: Each value is a pickle after its length.
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

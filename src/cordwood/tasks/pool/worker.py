"""A worker: a fork of the server that runs steps of tasks until the other end of its socket closes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.common.forks import MALLOC, set_malloc
from cordwood.tasks.pool.channel import Channel
from cordwood.tasks.runner import Numbered, Step

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

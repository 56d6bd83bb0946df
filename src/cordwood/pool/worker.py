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

from cordwood.jobs.runner import Numbered, Step
from cordwood.pool.channel import Channel

_PR_SET_PDEATHSIG = 1
#: Parameters of glibc's malloc. Windows of a log are let go and taken all the time; a worker keeps the memory for the
#: next, as pages that the system takes back and clears again cost as much as reading into them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MALLOC = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: 64 << 20, _M_TRIM_THRESHOLD: 128 << 20}


@dataclass(frozen=True, slots=True)
class Request:
    """A step of a task, with what it is run on."""

    step: Step
    items: Sequence[Numbered]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        error: what the step raised.
        trace: where, in words.
    """

    outcomes: Sequence[Numbered] = ()
    error: Exception | None = None
    trace: str = ""


def work(end: socket.socket, server: int) -> None:
    """Run what comes; returns when nothing more can come.

    Args:
        end: the worker's end of its socket.
        server: the process that this is a fork of.
    """
    _end_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _keep_memory()
    channel = Channel(end)
    with contextlib.suppress(EOFError, OSError):
        channel.send(os.getpid())
        while True:
            channel.send(_answer(channel.receive()))
            # The next task needs the memory that cycles of the last one hold.
            gc.collect()


def _answer(pickled: bytes) -> Answer:
    try:
        request: Request = pickle.loads(pickled)
        return Answer(list(request.step(request.items)))
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return Answer(error=RuntimeError(f"{type(error).__name__}: {error}"), trace=trace)
        return Answer(error=error, trace=trace)


def _end_with(parent: int) -> None:
    """Let the system kill this process when its parent has ended. Elsewhere than on Linux the server does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it has ended in between


def _keep_memory() -> None:
    with contextlib.suppress(AttributeError):  # another malloc than glibc's
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.items():
            mallopt(parameter, value)

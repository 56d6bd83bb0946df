"""Call a function with many items in forks of this process, one per core, where threads would share a single core.

    this process ──forks──► fork 0: items 0, 2, 4 …  ─┐  each result is a pickle after its length
                 └────────► fork 1: items 1, 3, 5 …  ─┴► results in the order of the items

A fork has all objects of this process, so neither the function nor the items are pickled. A pipe holds little, so a
fork waits until its results are read. Forks end with this process, or once no further result is read.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

from cordwood.common.errors import RequestError
from cordwood.fs.machine import local_cores
from cordwood.tasks.forks import can_fork, fork_server

_T = TypeVar("_T")
_R = TypeVar("_R")

_LENGTH = struct.Struct("<?q")


def forks_for(items: int) -> int:
    """Return the number of forks for this many items; 1 if this process has to do the work itself."""
    return min(local_cores(), items) if items > 1 and can_fork() else 1


def in_forks(forks: int, work: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
    """Call a function with each item, and yield the results in the order of the items.

    Args:
        forks: from `forks_for`; with 1, this process calls the function.
        work: it prints nothing, and its results and errors can be pickled.

    Raises:
        RequestError: a fork was killed, as the machine lacks memory.
    """
    if forks < 2:
        yield from map(work, items)
        return
    running: list[tuple[int, IO[bytes]]] = []
    try:
        for at in range(forks):
            ours, its = os.pipe()
            running.append((fork_server(_serving(work, items[at::forks], its), {its}), os.fdopen(ours, "rb")))
            os.close(its)
        for at in range(len(items)):
            yield _received(running[at % forks][1])
    finally:
        for child, pipe in running:
            pipe.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _serving(work: Callable[[_T], object], items: Sequence[_T], pipe: int) -> Callable[[], None]:
    """Return a function that a fork runs: it writes the result of each item, or the first error."""

    def serve() -> None:
        with os.fdopen(pipe, "wb") as file, contextlib.suppress(BrokenPipeError):
            try:
                for item in items:
                    _send(file, True, work(item))
            except BrokenPipeError:
                raise
            except Exception as error:
                _send(file, False, error)

    return serve


def _send(file: IO[bytes], is_result: bool, value: object) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    file.write(_LENGTH.pack(is_result, len(data)) + data)
    file.flush()


def _received(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) == _LENGTH.size:
        is_result, length = _LENGTH.unpack(head)
        data = pipe.read(length)
        if len(data) == length:
            value = pickle.loads(data)
            if not is_result:
                raise value
            return value
    raise RequestError("a process was killed; if memory was short, give fewer directories or partitions at a time")

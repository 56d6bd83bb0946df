"""Functions that the tests of the pool run in workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path


def where(_: object) -> tuple[int, int]:
    """The process of a worker, and that of its server."""
    return os.getpid(), os.getppid()


def noted(name: str, before: object) -> tuple[object, ...]:
    """Where this runs, behind where the step before did."""
    mine = (name, os.getpid())
    return (*before, mine) if isinstance(before, tuple) else (mine,)


def threads(_: object) -> int:
    """Number of the server's threads."""
    return len(os.listdir(f"/proc/{os.getppid()}/task"))


def append(path: str, text: str) -> None:
    """Note that a task has begun."""
    with open(path, "a") as file:
        file.write(text)


def begun(path: str) -> int:
    """Number of earlier calls with the path, in any process."""
    with open(path, "ab") as file:
        file.write(b".")
    return Path(path).stat().st_size - 1


def killed(path_and_times: tuple[str, int]) -> int:
    """Kill the worker `times` times; then return the number of calls."""
    path, times = path_and_times
    before = begun(path)
    if before < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return before


def stopped(path_and_times: tuple[str, int]) -> int:
    """Stop the worker `times` times, as a disk does that does not answer; then return the number of calls."""
    path, times = path_and_times
    before = begun(path)
    if before < times:
        os.kill(os.getpid(), signal.SIGSTOP)
    return before


def divided(number: int) -> float:
    return 1 / number


class CannotBePickledError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fails_oddly(_: object) -> None:
    raise CannotBePickledError("one", "two")


def gone(_: object) -> None:
    """Raise the exception of a file that ends too early, and of a closed socket."""
    raise EOFError("the end")


def sleeps(path: str) -> None:
    """Record the call, and sleep."""
    begun(path)
    threading.Event().wait(600)


def waits_for(path: str) -> str:
    """Wait until there is a file, so that two tasks run at a time."""
    name, other = path.split(":")
    Path(name).touch()
    deadline = time.monotonic() + 60
    while not Path(other).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return name

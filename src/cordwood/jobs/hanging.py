"""Ends a job whose tasks hang, such as those that wait for a disk that does not answer.

What waits for a job looks now and then at what its tasks report: the counters of bytes, which are files, and how many
tasks have ended. If nothing changes for long enough, the job is cancelled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from cordwood.errors import TasksHangError
from cordwood.fs.base import TargetStore

#: Called while a job is waited for, with what counts the tasks that have ended; raises once the job hangs.
Look = Callable[[Callable[[], int]], None]
_look: ContextVar[Callable[[], Look] | None] = ContextVar("look", default=None)
_LOOKS_PER_TIMEOUT = 20
_LOOK_SECONDS_MAX = 5.0


class Hanging:
    """What the tasks of one job report, and since when it has been the same."""

    def __init__(self, fs: TargetStore, folder: str, seconds: float) -> None:
        self._fs, self._folder, self._seconds = fs, folder, seconds
        self._seen: object = None
        self._since = self._looked = time.monotonic()

    def look(self, tasks_ended: Callable[[], int]) -> None:
        """Look, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked < min(self._seconds / _LOOKS_PER_TIMEOUT, _LOOK_SECONDS_MAX):
            return
        self._looked = now
        seen = _counters(self._fs, self._folder), tasks_ended()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > self._seconds:
            raise TasksHangError(
                f"No task has read, written or ended anything for {self._seconds:g} s, so they were given up. A disk "
                "that does not answer is a likely reason; the kernel's log (`dmesg`) may say more. If they only were "
                "slow, give --task-timeout more seconds"
            )


@contextlib.contextmanager
def given_up_after(fs: TargetStore, folder: str, seconds: float) -> Iterator[None]:
    """In the block, jobs end once their tasks have reported nothing new for so long."""
    token = _look.set(lambda: Hanging(fs, folder, seconds).look)
    try:
        yield
    finally:
        _look.reset(token)


@contextlib.contextmanager
def looked_at(look: Look) -> Iterator[None]:
    """In the block, `look` is called now and then while a job is waited for; what it raises ends the job."""
    token = _look.set(lambda: look)
    try:
        yield
    finally:
        _look.reset(token)


def looking() -> Look | None:
    """How to look at one job; None: wait for it however long it takes."""
    begin = _look.get()
    return None if begin is None else begin()


def _counters(fs: TargetStore, folder: str) -> frozenset[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    folders = [folder]
    for path in folders:  # grows
        with contextlib.suppress(OSError):
            for info in fs.list(path):
                if info.is_directory:
                    folders.append(f"{path}/{info.name}")
                found.append((info.name, info.mtime_ns, info.size_bytes))
    return frozenset(found)

"""End a job whose tasks hang, for example because a disk does not answer.

While a thread waits for a job, it regularly looks at the tasks' progress: the byte counters, which are files, and the
number of tasks that have ended. If neither changes for long enough, the job is cancelled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from cordwood.common.errors import TasksHangError
from cordwood.fs.base import TargetStore

#: Called repeatedly while a thread waits for a job, with a function that counts ended tasks; raises once the job hangs.
Look = Callable[[Callable[[], int]], None]
_look: ContextVar[Callable[[], Look] | None] = ContextVar("look", default=None)
_LOOKS_PER_TIMEOUT = 20
_LOOK_SECONDS_MAX = 5.0


class Hanging:
    """Progress of the tasks of one job, and since when it has not changed."""

    def __init__(self, fs: TargetStore, folder: str, seconds: float) -> None:
        self._fs, self._folder, self._seconds = fs, folder, seconds
        self._seen: object = None
        self._since = self._looked = time.monotonic()

    def look(self, tasks_ended: Callable[[], int]) -> None:
        """Look at the progress unless the last look is recent; raise TasksHangError if it has stopped."""
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
    """End jobs started in the block once their tasks have made no progress for this many seconds."""
    token = _look.set(lambda: Hanging(fs, folder, seconds).look)
    try:
        yield
    finally:
        _look.reset(token)


@contextlib.contextmanager
def looked_at(look: Look) -> Iterator[None]:
    """Call `look` repeatedly while a thread in the block waits for a job; an exception from `look` ends the job."""
    token = _look.set(lambda: look)
    try:
        yield
    finally:
        _look.reset(token)


def looking() -> Look | None:
    """Return the function to call while waiting for one job, or None to wait without a limit."""
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

"""The interface of engines that run tasks, the simplest engine, and the watch over tasks that hang.

    here      `InThisProcess`            for stores that no other process can open
    Spark     `tasks.spark.runner`       our own session or the user's
    pool      `tasks.pool.runner`        processes of this machine, without Java

All three share the division and packing of work, the functions of tasks, and the reports.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from cordwood.common.errors import TasksHangError
from cordwood.fs.base import TargetStore

#: An item or its outcome, with the item's number.
Numbered = tuple[int, Any]
#: A step of a task: takes the numbered items of a pack, or the outcomes of the previous step, and yields outcomes. A
#: value that can be pickled.
Step = Callable[[Iterable[Numbered]], Iterator[Numbered]]


class Runner(Protocol):
    """Runs tasks."""

    @property
    def cores(self) -> int:
        """Number of tasks that run concurrently."""
        ...

    @property
    def is_on_this_machine(self) -> bool:
        """Whether all tasks run on this machine."""
        ...

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Raise RequestError if processes cannot run tasks, or see other files than this process.

        Args:
            folder: folder of this run, in which tasks write.
            paths: partitions that tasks read from disks.
            needs: advice for the message if tasks do not see the folder.
        """
        ...

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """Run a task for each pack.

        Args:
            steps: the first step gets the items of the pack, each later one the outcomes of the previous step. A step
                runs in another process than the step before it.

        Returns:
            the outcomes of the last step, by number.
        """
        ...


#: Starts a runner, and ends it with the `with` block. The argument is the size in bytes of each of the first tasks,
#: which may decide how many of them run concurrently.
Start = Callable[[Sequence[int]], AbstractContextManager[Runner]]


@dataclass(frozen=True, slots=True)
class InThisProcess:
    """Runs tasks in this process, one after the other."""

    cores: int = 1
    is_on_this_machine: bool = True

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Accept: tasks in this process see the same files."""

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`; all steps run in this process."""
        found: dict[int, Any] = {}
        for pack in packs:
            rows: Iterable[Numbered] = pack
            for step in steps:
                rows = step(rows)
            found.update(rows)
        return found


# ---- tasks that hang -------------------------------------------------------------------------------------------------

# A task may hang because a disk does not answer. While a thread waits for a job, it regularly looks at the tasks'
# progress: the byte counters, which are files, and the number of tasks that have ended. If neither changes for long
# enough, the job is cancelled.

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
                f"No task has read, written or ended anything for {self._seconds:g} s, so they were given up. The "
                "likely cause is a disk that does not answer; look into the kernel's log (`dmesg`). If the tasks were "
                "only slow, give --task-timeout more seconds"
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

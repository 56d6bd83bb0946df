"""Ends a job whose tasks hang, such as those that wait for a disk that does not answer.

While `session.collect` waits for a job, it looks now and then at what its tasks report: the counters of bytes, which
are files, and how many tasks Spark says have ended. If nothing changes for long enough, the job is cancelled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from cordwood.errors import TasksHangError
from cordwood.fs.base import TargetStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Called while a job is waited for; raises once it hangs.
Look = Callable[["SparkSession"], None]
_look: ContextVar[Callable[[], Look] | None] = ContextVar("look", default=None)
_LOOKS_PER_TIMEOUT = 20
_LOOK_SECONDS_MAX = 5.0


class Hanging:
    """What the tasks of one job report, and since when it has been the same."""

    def __init__(self, fs: TargetStore, folder: str, seconds: float) -> None:
        self._fs, self._folder, self._seconds = fs, folder, seconds
        self._seen: object = None
        self._since = self._looked = time.monotonic()

    def look(self, spark: SparkSession) -> None:
        """Look, unless that was done a moment ago.

        Raises:
            TasksHangError: nothing has changed for too long.
        """
        now = time.monotonic()
        if now - self._looked < min(self._seconds / _LOOKS_PER_TIMEOUT, _LOOK_SECONDS_MAX):
            return
        self._looked = now
        seen = _counters(self._fs, self._folder), _tasks_ended(spark)
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


def _tasks_ended(spark: SparkSession) -> int:
    """Of the session's running jobs."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # Spark Connect does not say
        return 0
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)

"""Waits for a job of Spark, so that whatever ends this thread ends the job, too."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from cordwood.errors import StoreError
from cordwood.jobs.hanging import looking

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

T = TypeVar("T")

_CANCELLED_SECONDS_MAX = 5
_WAIT_SECONDS = 0.2


def collect(rows: DataFrame) -> list[Row]:
    """All rows, as `rows.collect()` returns them. An exception in this thread, such as that of Ctrl-C, ends the job.

    Raises:
        StoreError: an object store failed in a task.
    """
    spark = rows.sparkSession
    context = _context(spark)
    if context is not None:
        return _in_context(context, rows.collect, spark)
    tag = _new_tag()
    spark.addTag(tag)  # the thread inherits it
    try:
        return _waited_for(rows.collect, spark, lambda: spark.interruptTag(tag), lambda: 0)
    finally:
        with contextlib.suppress(Exception):
            spark.removeTag(tag)


def collect_rdd(items: RDD[T]) -> list[T]:
    """All items, as `items.collect()` returns them; see `collect`."""
    return _in_context(items.context, items.collect)


def _in_context(context: SparkContext, run: Callable[[], list[T]], spark: SparkSession | None = None) -> list[T]:
    """Run a job that this thread can end.

    A session of Spark Classic adds the id of its Java thread to each tag, and every Python thread has a Java thread of
    its own. So one thread cannot end the jobs of another by a tag of the session, but by one of the context it can.
    """
    tag = _new_tag()

    def tagged() -> list[T]:
        # Both hold for the new thread alone. A task that is interrupted has its worker killed; else it would run on.
        context.addJobTag(tag)
        context.setInterruptOnCancel(True)
        return run()

    return _waited_for(tagged, spark, lambda: context.cancelJobsWithTag(tag), lambda: _tasks_ended(context))


def _new_tag() -> str:
    return f"cordwood-{uuid4().hex}"


def _waited_for(
    run: Callable[[], list[T]],
    spark: SparkSession | None,
    cancel: Callable[[], object],
    tasks_ended: Callable[[], int],
) -> list[T]:
    """Wait for a job in another thread, which inherits what names this thread's jobs.

    A thread that is interrupted in the middle of a call to Java cannot make another one before the first has its
    answer; this one makes no long ones, so that it can cancel the job.
    """
    from pyspark import InheritableThread

    done: list[list[T]] = []
    failed: list[BaseException] = []

    class Job(InheritableThread):
        def run(self) -> None:
            try:
                super().run()  # calls Java, which may be gone, before what it is given
            except BaseException as error:
                failed.append(error)

    named: dict[str, Any] = {} if spark is None else {"session": spark}
    thread = Job(lambda: done.append(run()), daemon=True, **named)
    thread.start()
    try:
        look = looking()
        while look is not None and thread.is_alive():
            thread.join(_WAIT_SECONDS)
            look(tasks_ended)
        thread.join()
    except BaseException:
        end = time.monotonic() + _CANCELLED_SECONDS_MAX
        # Again and again: a query that has just ended one job begins its next one.
        while thread.is_alive() and time.monotonic() < end:
            with contextlib.suppress(Exception):  # Java may be gone
                cancel()
            thread.join(_WAIT_SECONDS)
        raise
    for error in failed:
        # Spark has made words of the error of its worker. It has them only as long as it runs.
        if (words := re.search(r"cordwood\.errors\.Store(?:Access)?Error: (.+)", _said(error))) is not None:
            raise StoreError(words[1]) from error
        raise error
    return done[0]


def _said(error: BaseException) -> str:
    """What an error says; some ask Java for it, which may be gone."""
    try:
        return str(error)
    except Exception:
        return ""


def _context(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except Exception:  # Spark Connect has none
        return None


def _tasks_ended(context: SparkContext) -> int:
    """Of the running jobs."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)

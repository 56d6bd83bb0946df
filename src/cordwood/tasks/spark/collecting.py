"""Wait for a Spark job so that an exception in the waiting thread also ends the job."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from cordwood.common.errors import StoreError
from cordwood.tasks.hanging import looking

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

T = TypeVar("T")

_CANCELLED_SECONDS_MAX = 5
#: The words of a store's error in the text of a failed job.
_STORE_ERROR = re.compile(rf"{re.escape(StoreError.__module__)}\.Store(?:Access)?Error: (.+)")
_WAIT_SECONDS = 0.2


def collect(rows: DataFrame) -> list[Row]:
    """Return all rows, as `rows.collect()`. An exception in this thread, such as KeyboardInterrupt, ends the job.

    Raises:
        StoreError: an object store failed in a task.
    """
    spark = rows.sparkSession
    context = _context(spark)
    if context is not None:
        return _in_context(context, rows.collect, spark)
    tag = _new_tag()
    spark.addTag(tag)  # the thread that runs the job inherits the tag
    try:
        return _waited_for(rows.collect, spark, lambda: spark.interruptTag(tag), lambda: 0)
    finally:
        with contextlib.suppress(Exception):
            spark.removeTag(tag)


def collect_rdd(items: RDD[T]) -> list[T]:
    """Return all items, as `items.collect()`; see `collect`."""
    return _in_context(items.context, items.collect)


def _in_context(context: SparkContext, run: Callable[[], list[T]], spark: SparkSession | None = None) -> list[T]:
    """Run a job that this thread can cancel.

    A session of Spark Classic adds the id of its Java thread to each tag, and each Python thread has its own Java
    thread. So a session's tag cannot cancel a job of another thread, but a tag of the context can.
    """
    tag = _new_tag()

    def tagged() -> list[T]:
        # Both apply to the new thread only. Spark kills the worker of an interrupted task; otherwise it would continue.
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
    """Run a job in another thread, which inherits the names of this thread's jobs, and wait for it.

    A thread that is interrupted during a call to Java cannot call Java again before the first call returns. The waiting
    thread makes no long calls, so it can cancel the job.
    """
    from pyspark import InheritableThread

    done: list[list[T]] = []
    failed: list[BaseException] = []

    class Job(InheritableThread):
        def run(self) -> None:
            try:
                super().run()  # first calls Java, which may have ended, and then the target
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
        # Cancel repeatedly: a query whose current job has just ended starts its next job.
        while thread.is_alive() and time.monotonic() < end:
            with contextlib.suppress(Exception):  # Java may have ended
                cancel()
            thread.join(_WAIT_SECONDS)
        raise
    for error in failed:
        # Spark converts the worker's exception to text. The text is in Java, so it can be read only while Java runs.
        if (words := _STORE_ERROR.search(_said(error))) is not None:
            raise StoreError(words[1]) from error
        raise error
    return done[0]


def _said(error: BaseException) -> str:
    """Return an error's text, or an empty text: some errors get it from Java, which may have ended."""
    try:
        return str(error)
    except Exception:
        return ""


def _context(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except Exception:  # Spark Connect has no context
        return None


def _tasks_ended(context: SparkContext) -> int:
    """Count the completed tasks of all running jobs."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)

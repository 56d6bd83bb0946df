"""Run tasks on Spark, which retries a task if one of its processes is killed.

Each step of a task has its own Python process: the first passes its outcomes to the second, one by one. An exception in
the thread that waits for a job also ends the job.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from cordwood.common import errors
from cordwood.common.errors import DataError, NotFoundError, StoreError
from cordwood.common.types import override
from cordwood.fs.base import TargetStore
from cordwood.tasks.runner import Numbered, Step, looking
from cordwood.tasks.spark import probe
from cordwood.tasks.spark.executors import check_executors
from cordwood.tasks.spark.gateway import Gateway, raise_if_ended
from cordwood.tasks.spark.session import cores as cores_of
from cordwood.tasks.spark.session import running
from cordwood.tasks.spark.settings import LOCAL_MASTER
from cordwood.tasks.spark.worker import Worker, by_number, keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

_POOL = "spark.scheduler.pool"
#: Local properties that name a thread's jobs.
_NAMES_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", _POOL)
#: Schema of the rows that tasks return.
_RESULT_SCHEMA = "at bigint, outcome binary"


@contextlib.contextmanager
def running_on_spark(
    given: SparkSession | None = None,
    *,
    master: str = LOCAL_MASTER,
    archive: str | None = None,
    settings: Mapping[str, str] | None = None,
    tasks: int | None = None,
) -> Iterator[SparkRunner]:
    """Provide a runner on Spark; see `session.running`.

    Our own Spark runs tasks as RDDs, as Java takes 4 to 5 seconds to load Catalyst, which RDDs do not need. A user's
    session runs them as a DataFrame, as it may use Spark Connect, or a platform without RDDs.
    """
    with running(given, master=master, archive=archive, settings=settings, tasks=tasks) as spark:
        yield ContextRunner(spark) if isinstance(spark, Gateway) else SessionRunner(spark)


class SparkRunner(ABC):
    """Runs tasks on Spark; see `tasks.runner` and `executors.Executors`."""

    __slots__ = ()

    @property
    @abstractmethod
    def session(self) -> SparkSession:
        """The session, which takes seconds to load at the first use."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """See `Runner`."""

    @property
    def is_on_this_machine(self) -> bool:
        """See `Runner`."""
        return self.setting("spark.master").startswith("local")

    @abstractmethod
    def setting(self, name: str) -> str:
        """See `Executors`."""

    @abstractmethod
    def ask(self, question: Callable[[], str], count: int) -> list[str]:
        """See `Executors`."""

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """See `Runner`."""
        check_executors(self, fs, folder, paths, needs)

    @abstractmethod
    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`."""

    @abstractmethod
    def named(self, name: str, what: str) -> AbstractContextManager[None]:
        """In the block, name this thread's jobs and, with fair scheduling, give them their own share of the cores.

        Args:
            name: name of the jobs' group, and of their pool.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether Spark still answers."""


@dataclass(frozen=True, slots=True)
class SessionRunner(SparkRunner):
    """Runs tasks on a user's session, as a DataFrame."""

    given: SparkSession

    @property
    @override
    def session(self) -> SparkSession:
        return self.given

    @property
    @override
    def cores(self) -> int:
        return cores_of(self.session)

    @override
    def setting(self, name: str) -> str:
        return self.session.conf.get(name, "") or ""

    @override
    def ask(self, question: Callable[[], str], count: int) -> list[str]:
        rows = self.session.range(0, count, 1, count).mapInArrow(probe.in_batches(question), "answer string")
        return [row["answer"] for row in collect(rows)]

    @override
    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        rows = self.session.range(0, len(packs), 1, len(packs)).mapInArrow(_first(packs, steps[0]), _RESULT_SCHEMA)
        for step in steps[1:]:
            rows = rows.mapInArrow(_next(step), _RESULT_SCHEMA)
        return {row["at"]: pickle.loads(row["outcome"]) for row in collect(rows)}

    @override
    def named(self, name: str, what: str) -> AbstractContextManager[None]:
        try:
            context = self.session.sparkContext
        except Exception:  # Spark Connect has no context
            return contextlib.nullcontext()
        return _named(context, name, what)

    @override
    def is_alive(self) -> bool:
        try:
            self.session.range(1).collect()
        except Exception:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ContextRunner(SparkRunner):
    """Runs tasks on our own Spark, as RDDs."""

    gateway: Gateway

    @property
    @override
    def session(self) -> SparkSession:
        return self.gateway.session

    @property
    @override
    def cores(self) -> int:
        return int(self.gateway.context.defaultParallelism)

    @override
    def setting(self, name: str) -> str:
        return self.gateway.context.getConf().get(name, "") or ""

    @override
    def ask(self, question: Callable[[], str], count: int) -> list[str]:
        tasks = self.gateway.context.parallelize(range(count), count)
        return collect_rdd(tasks.mapPartitions(probe.in_items(question)))

    @override
    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        from pyspark import RDD, cloudpickle

        context = self.gateway.context
        # cloudpickle pickles functions of tests and notebooks by value.
        pickled = [cloudpickle.dumps(pack) for pack in packs]  # type: ignore[no-untyped-call]
        items: RDD[Any] = context.parallelize(pickled, len(pickled)).mapPartitions(_unpacking(steps[0]))
        for step in steps[1:]:
            # A new RDD hides that the previous step is Python's, or Spark would run both steps in one process.
            before: RDD[Any] = RDD(items._jrdd, context, items._jrdd_deserializer)
            items = before.mapPartitions(step)
        return dict(collect_rdd(items))

    @override
    def named(self, name: str, what: str) -> AbstractContextManager[None]:
        return _named(self.gateway.context, name, what)

    @override
    def is_alive(self) -> bool:
        try:
            self.gateway.context.parallelize(range(1), 1).count()
        except Exception:
            return False
        return True


@contextlib.contextmanager
def _named(context: SparkContext, name: str, what: str) -> Iterator[None]:
    before = {key: context.getLocalProperty(key) for key in _NAMES_OF_JOBS}
    context.setJobGroup(name, what, interruptOnCancel=True)
    if context.getConf().get("spark.scheduler.mode", "FIFO") == "FAIR":
        context.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        try:
            for key, value in before.items():
                context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it
        except Exception as error:  # Java may have ended
            raise_if_ended(error)


def _unpacking(step: Step) -> Callable[[Iterable[bytes]], Iterator[Numbered]]:
    """Make the first step, whose input is one pickled pack per item."""

    def run(pickled: Iterable[bytes]) -> Iterator[Numbered]:
        for pack in pickled:
            yield from step(pickle.loads(pack))

    return run


def _first(packs: Sequence[Sequence[Numbered]], step: Step) -> Worker:
    """Make the function that reads rows of pack numbers, for the first step."""

    def read(number: int) -> Iterator[pa.RecordBatch]:
        for at, outcome in step(packs[number]):
            yield _row_of(at, pickle.dumps(outcome))

    return by_number(read)


def _next(step: Step) -> Worker:
    """Make the function that reads the rows of the previous step."""

    def outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[Numbered]:
        for batch in batches:
            for at, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield at, pickle.loads(outcome)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at, outcome in step(outcomes(batches)):
            yield _row_of(at, pickle.dumps(outcome))
        keep_loaded()

    return run


def _row_of(at: int, outcome: bytes) -> pa.RecordBatch:
    """Make one row from buffers. All other ways import pandas first, which takes longer than cleaning a partition."""
    import pyarrow as pa

    ats = [None, pa.py_buffer(struct.pack("=q", at))]
    outcomes = [None, pa.py_buffer(struct.pack("=2i", 0, len(outcome))), pa.py_buffer(outcome)]
    columns = [pa.Array.from_buffers(pa.int64(), 1, ats), pa.Array.from_buffers(pa.binary(), 1, outcomes)]
    return pa.RecordBatch.from_arrays(columns, ["at", "outcome"])


# ---- jobs ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_CANCELLED_SECONDS_MAX = 5
#: Our error in the text of a failed job: its class and its message.
_OUR_ERROR = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.+)")
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
        raise_task_error(error)
        raise error
    return done[0]


def raise_task_error(error: BaseException) -> None:
    """Raise a task's error again if it is about the data or its store: a job's error holds only its text."""
    try:
        found = _OUR_ERROR.search(str(error))
    except Exception:  # some errors get their text from Java, which may have ended
        return
    kind = None if found is None else getattr(errors, found[1], None)
    if found is not None and isinstance(kind, type) and issubclass(kind, DataError | NotFoundError | StoreError):
        raise kind(found[2]) from error


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

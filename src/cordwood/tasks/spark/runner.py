"""Run tasks on Spark, which retries a task if one of its processes is killed.

Each step of a task has its own Python process: the first passes its outcomes to the second, one by one.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cordwood.common.types import override
from cordwood.fs.base import TargetStore
from cordwood.tasks.runner import Numbered, Step
from cordwood.tasks.spark import probe
from cordwood.tasks.spark.collecting import collect, collect_rdd
from cordwood.tasks.spark.executors import check_executors
from cordwood.tasks.spark.gateway import Gateway, raise_if_ended
from cordwood.tasks.spark.session import cores as cores_of
from cordwood.tasks.spark.session import running
from cordwood.tasks.spark.settings import LOCAL_MASTER
from cordwood.tasks.spark.worker import Worker, by_number, keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

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

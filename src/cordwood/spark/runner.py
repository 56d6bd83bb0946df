"""Runs tasks on Spark, which runs a task again if one of its processes is killed.

Each step of a task has a Python process of its own: the first passes its outcomes to the second, one by one.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cordwood.fs.base import TargetStore
from cordwood.jobs.runner import Numbered, Step
from cordwood.spark.executors import check_executors
from cordwood.spark.session import LOCAL_MASTER, collect, is_on_this_machine, session
from cordwood.spark.session import cores as cores_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Schema of the rows that tasks return.
_RESULT_SCHEMA = "at bigint, outcome binary"

#: The kind of function that Spark's `mapInArrow` takes.
Worker = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


@contextlib.contextmanager
def running_on_spark(
    given: SparkSession | None = None, *, master: str = LOCAL_MASTER, archive: str | None = None
) -> Iterator[SparkRunner]:
    """What runs tasks on a session; see `session`."""
    with session(given, master=master, archive=archive) as spark:
        yield SparkRunner(spark)


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """Runs tasks on a session, as a DataFrame; see `jobs.runner`."""

    session: SparkSession

    @property
    def cores(self) -> int:
        """See `Runner`."""
        return cores_of(self.session)

    @property
    def is_on_this_machine(self) -> bool:
        """See `Runner`."""
        return is_on_this_machine(self.session)

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """See `Runner`."""
        check_executors(self.session, fs, folder, paths, needs)

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`."""
        rows = self.session.range(0, len(packs), 1, len(packs)).mapInArrow(_first(packs, steps[0]), _RESULT_SCHEMA)
        for step in steps[1:]:
            rows = rows.mapInArrow(_next(step), _RESULT_SCHEMA)
        return {row["at"]: pickle.loads(row["outcome"]) for row in collect(rows)}


def _first(packs: Sequence[Sequence[Numbered]], step: Step) -> Worker:
    """Make the function that gets rows of pack numbers. Spark pickles it with all values that it uses."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for at, outcome in step(packs[number]):
                    yield _row_of(at, pickle.dumps(outcome))

    return run


def _next(step: Step) -> Worker:
    """Make the function that gets the rows of the step before."""

    def outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[Numbered]:
        for batch in batches:
            for at, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield at, pickle.loads(outcome)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at, outcome in step(outcomes(batches)):
            yield _row_of(at, pickle.dumps(outcome))

    return run


def _row_of(at: int, outcome: bytes) -> pa.RecordBatch:
    """Make one row from buffers. All other ways import pandas first, which takes longer than cleaning a partition."""
    import pyarrow as pa

    ats = [None, pa.py_buffer(struct.pack("=q", at))]
    outcomes = [None, pa.py_buffer(struct.pack("=2i", 0, len(outcome))), pa.py_buffer(outcome)]
    columns = [pa.Array.from_buffers(pa.int64(), 1, ats), pa.Array.from_buffers(pa.binary(), 1, outcomes)]
    return pa.RecordBatch.from_arrays(columns, ["at", "outcome"])

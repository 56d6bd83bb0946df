"""Spark as what moves rows between the tasks of a clean: scans are kept on executors' disks, and shuffled from there.

    scan      mapInArrow, persisted: rows of a block that is lost are made again by Spark, by the same scan
    merge     the kept rows by range, sorted, mapInArrow
    rewrite   the kept rows by group and what merges say, sorted, mapInArrow; then the check of what was written

What is kept is in Spark's local folders (`spark.local.dir`) until the exchange is closed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cordwood.engine.row_exchange import GroupTask, Merges, ScanTask, merge_rows, rewrite_rows, scan_rows
from cordwood.engine.rows import Row, Stage
from cordwood.engine.stages import RunSummary
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask
from cordwood.spark.packing import RESULT_SCHEMA, TASKS_PER_CORE, Worker, checker, pack, row_of
from cordwood.spark.session import collect, with_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEYS = ("stage", "target", "run", "chunk", "number", "part")
ROW_SCHEMA = ", ".join([*(f"{name} bigint" for name in KEYS), "data binary"])
#: Rows that go from Python to Java at once have about so many bytes.
_BATCH_BYTES = 4 << 20
#: A row may have 256 KiB, and there may be any number of them.
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # Rows that go from Java to Python at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    # Rows of a block that is kept: Java's serializer holds the last hundred blocks that it has written.
    "spark.sql.inMemoryColumnarStorage.batchSize": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
#: What Java says of a full disk.
_FULL = "No space left on device"
#: Where Spark tells its Python workers which folders they may use.
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"


class SparkShuffle:
    """Runs tasks on Spark; see `RowRunner`.

    Args:
        spark: the session; its settings are not changed.
        cores: tasks that run at once.
        do: rewrites a group.
        discard: nothing is written, so nothing is checked.
    """

    def __init__(
        self, spark: SparkSession, cores: int, do: Callable[[PartitionTask], Output | Failure], *, discard: bool
    ) -> None:
        self._spark = with_settings(spark, _SETTINGS)
        self._cores = cores
        self._do = do
        self._discard = discard
        self._kept: list[DataFrame] = []

    def scan(self, tasks: Sequence[ScanTask], sizes: Sequence[int]) -> Mapping[int, RunSummary | Failure]:
        """See `RowRunner.scan`."""
        from pyspark import StorageLevel

        packs = [[tasks[at] for at in one] for one in pack(sizes, self._cores)]
        rows = self._spark.range(0, len(packs), 1, len(packs)).mapInArrow(_scanner(packs), ROW_SCHEMA)
        self._kept.append(rows.persist(StorageLevel.DISK_ONLY))
        answers = self._kept[-1].filter(f"stage = {Stage.ANSWER:d}").selectExpr("target AS at", "data AS outcome")
        return _answers(answers, [task.answer for task in tasks])

    def rewrite(self, merges: Sequence[Merges], groups: Sequence[GroupTask]) -> Mapping[int, Output | Failure]:
        """See `RowRunner.rewrite`."""
        kept = functools.reduce(lambda one, other: one.union(other), self._kept)
        arriving = kept
        if merges:
            count = min(TASKS_PER_CORE * self._cores, sum(one.ranges for one in merges))
            arriving = kept.union(_sent(kept, Stage.MERGE, count).mapInArrow(_merger(merges), ROW_SCHEMA))
        count = min(TASKS_PER_CORE * self._cores, len(groups))
        outcomes = _sent(arriving, Stage.REWRITE, count).mapInArrow(_rewriter(groups, self._do), RESULT_SCHEMA)
        if not self._discard:
            outcomes = outcomes.mapInArrow(checker([group.task for group in groups]), RESULT_SCHEMA)
        return _answers(outcomes, [group.answer for group in groups])

    def close(self) -> None:
        """Let Spark remove what it keeps."""
        for rows in self._kept:
            with contextlib.suppress(Exception):  # Java may have ended, for which another exception is already raised
                rows.unpersist()
        self._kept = []


def _answers(rows: DataFrame, expected: Sequence[int]) -> dict[int, Any]:
    """The pickled values of all rows, by number; a failure for all that are expected if Spark has no room for rows."""
    try:
        return {row["at"]: pickle.loads(row["outcome"]) for row in collect(rows)}
    except Exception as error:
        if _FULL not in str(error):
            raise
        what = "no space left in a local folder of Spark (spark.local.dir), for what tasks hand each other"
        return dict.fromkeys(expected, Failure(FailureKind.FULL, what))


def _sent(rows: DataFrame, stage: Stage, count: int) -> DataFrame:
    """The rows of a stage; see `in_order`."""
    return in_order(rows.filter(f"stage = {stage:d}"), count)


def in_order(rows: DataFrame, count: int) -> DataFrame:
    """Rows in so many partitions, all rows of a target in one of them, sorted."""
    from pyspark.sql import functions as f

    return rows.repartitionById(count, (f.col("target") % count).cast("int")).sortWithinPartitions(*KEYS)


# ---- functions of tasks ----------------------------------------------------------------------------------------------


def _scanner(packs: Sequence[Sequence[ScanTask]]) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = os.environ.get(_LOCAL_DIRS, "").split(",")[0] or tempfile.gettempdir()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for task in packs[number]:
                    yield from batches_of(scan_rows(task, folder))

    return run


def _merger(merges: Sequence[Merges]) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches_of(merge_rows(rows_in(batches), merges))

    return run


def _rewriter(groups: Sequence[GroupTask], do: Callable[[PartitionTask], Output | Failure]) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for at, outcome in rewrite_rows(rows_in(batches), groups, do):
            yield row_of(at, pickle.dumps(outcome))

    return run


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows in Arrow batches of `ROW_SCHEMA`."""
    for batch in batches:
        *keys, data = batch.columns
        for key, value in zip(zip(*(column.to_pylist() for column in keys), strict=True), data, strict=True):
            yield Row._make([*key, memoryview(value.as_buffer())])


def batches_of(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Rows, some at a time, made from buffers: all other ways import pandas first."""
    import pyarrow as pa

    for first in rows:
        some, size_bytes = [first], len(first.data)
        while size_bytes < _BATCH_BYTES and (row := next(rows, None)) is not None:
            some.append(row)
            size_bytes += len(row.data)
        *keys, data = zip(*some, strict=True)
        ends = itertools.accumulate((len(one) for one in data), initial=0)
        columns = [
            pa.Array.from_buffers(pa.int64(), len(some), [None, pa.py_buffer(np.array(key, np.int64))]) for key in keys
        ]
        buffers = [None, pa.py_buffer(np.array(list(ends), np.int32)), pa.py_buffer(b"".join(data))]
        columns.append(pa.Array.from_buffers(pa.binary(), len(some), buffers))
        yield pa.RecordBatch.from_arrays(columns, [*KEYS, "data"])

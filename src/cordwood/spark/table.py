"""The last value of each key as a Spark DataFrame: the stages of `engine.table`, with Spark's shuffle in between.

    runs ──► scan ──► rows, by hash range or run ──► merge ──► rows, by run ──► newest ──► decoded, a row per key

Only hashes of keys and bits are shuffled, in rows of up to 256 KiB; records are read twice instead. All of it is one
plan, which runs when the DataFrame is used.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cordwood.engine.table import TableRun, merge_rows, newest_records, scan_rows
from cordwood.engine.table_rows import TableFormat
from cordwood.spark.packing import RESULT_SCHEMA, TASKS_PER_CORE, Worker, over_rows, pack
from cordwood.spark.session import collect, cores
from cordwood.spark.shuffle import ROW_SCHEMA, batches_of, in_order, rows_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
#: A task that reads less than this does not pay.
_TASK_BYTES_MIN = 1 << 20


def table_dataframe(spark: SparkSession, runs: Sequence[TableRun], rows_format: TableFormat) -> DataFrame:
    """The rows of a table.

    Args:
        spark: the session.
        runs: what it is made of, by number.
        rows_format: what its rows look like.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(rows_format.schema, prefer_timestamp_ntz=False)
    if not runs:
        return spark.createDataFrame([], schema)
    packs = [[runs[at] for at in one] for one in pack([run.size_bytes for run in runs], cores(spark))]
    size_bytes = sum(run.size_bytes for run in runs)
    most = max(1, min(TASKS_PER_CORE * cores(spark), size_bytes // _TASK_BYTES_MIN))
    ranges = max(run.first_range + run.ranges for run in runs)
    rows = spark.range(0, len(packs), 1, len(packs)).mapInArrow(_scanner(packs), ROW_SCHEMA)
    rows = in_order(rows, min(most, max(ranges, len(runs)))).mapInArrow(_merger, ROW_SCHEMA)
    return in_order(rows, min(most, len(runs))).mapInArrow(_reader(runs, rows_format), schema)


def run_each(spark: SparkSession, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
    """Run a function on each item as tasks; the results come in the order of the items. The first error is raised."""
    if not items:
        return []
    packs = [[(at, items[at]) for at in one] for one in pack(sizes, cores(spark))]
    worker = over_rows(packs, _caught(do), lambda _: False, 1)
    rows = collect(spark.range(0, len(packs), 1, len(packs)).mapInArrow(worker, RESULT_SCHEMA))
    found = {row["at"]: pickle.loads(row["outcome"]) for row in rows}
    for at in sorted(found):
        if isinstance(found[at], Exception):
            raise found[at]
    return [found[at] for at in range(len(items))]


# ---- functions of tasks ----------------------------------------------------------------------------------------------


def _caught(do: Callable[[T], Any]) -> Callable[[T], Any]:
    def run(item: T) -> Any:
        try:
            return do(item)
        except Exception as error:
            return error

    return run


def _scanner(packs: Sequence[Sequence[TableRun]]) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for one in packs[number]:
                    yield from batches_of(scan_rows(one))

    return run


def _merger(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches_of(merge_rows(rows_in(batches)))


def _reader(runs: Sequence[TableRun], rows_format: TableFormat) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows_format.batches(newest_records(rows_in(batches), runs))

    return run

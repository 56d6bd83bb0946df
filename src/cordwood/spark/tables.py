"""The last value of each key as a Spark DataFrame: its tasks decode the records that `tables.newest` found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood import errors
from cordwood.errors import DataError, NotFoundError
from cordwood.jobs.packing import pack
from cordwood.spark.garbage import keep_loaded
from cordwood.spark.runner import Worker
from cordwood.spark.session import cores
from cordwood.tables.newest import NewestTask
from cordwood.tables.rows import TableFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: How the traceback of a task ends: the class and its message, in one line.
_LAST_LINE = re.compile(r"^cordwood\.errors\.(\w+): (.+)$", re.MULTILINE)


def table_dataframe(spark: SparkSession, tasks: Sequence[NewestTask], rows_format: TableFormat) -> DataFrame:
    """The rows of a table.

    Args:
        rows_format: what the rows look like.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(rows_format.schema, prefer_timestamp_ntz=False)
    if not tasks:
        return spark.createDataFrame([], schema)
    packs = [[tasks[at] for at in chosen] for chosen in pack([task.run.size_bytes for task in tasks], cores(spark))]
    return spark.range(0, len(packs), 1, len(packs)).mapInArrow(_reader(packs, rows_format), schema)


def _reader(packs: Sequence[Sequence[NewestTask]], rows_format: TableFormat) -> Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from rows_format.batches(packs[number])
        keep_loaded()

    return run


def raise_data_error(error: Exception) -> None:
    """Raise the error of the task that made a job fail, if it is about the data. Spark has nothing but its words."""
    found = _LAST_LINE.search(f"{error}")
    if found is None:
        return
    kind = getattr(errors, found[1], None)
    if isinstance(kind, type) and issubclass(kind, DataError | NotFoundError):
        raise kind(found[2]) from error

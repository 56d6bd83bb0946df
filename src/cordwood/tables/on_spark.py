"""Tables and records of internal topics as Spark DataFrames; their tasks read logs and decode records without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood.common.types import Isolation
from cordwood.storage.log.view import LogSource
from cordwood.tables.newest import NewestTask
from cordwood.tables.rows import TableFormat
from cordwood.tasks.spark.session import cores
from cordwood.tasks.spark.worker import by_number
from cordwood.tasks.tasks import pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def table_dataframe(spark: SparkSession, tasks: Sequence[NewestTask], rows_format: TableFormat) -> DataFrame:
    """Return the rows of a table.

    Args:
        rows_format: the table's columns and decoders.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(rows_format.schema, prefer_timestamp_ntz=False)
    if not tasks:
        return spark.createDataFrame([], schema)
    packs = [[tasks[at] for at in chosen] for chosen in pack([task.run.size_bytes for task in tasks], cores(spark))]
    read = by_number(lambda number: rows_format.batches(packs[number]))
    return spark.range(0, len(packs), 1, len(packs)).mapInArrow(read, schema)


def reason_of(error: Exception) -> str | None:
    """Return the first line of an error from Spark or a Java class it called, or None for any other error."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    elif isinstance(error, PySparkException):
        text = f"{error}"
    else:
        return None
    return text.strip().partition("\n")[0]


# ---- records of internal topics --------------------------------------------------------------------------------------


def internal_dataframe(
    spark: SparkSession, logs: Sequence[LogSource], record: str, schema: pa.Schema, isolation: Isolation | None
) -> DataFrame:
    """Return the records of one type in some logs.

    Args:
        isolation: see `LogView.columns`.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(number: int) -> Iterator[pa.RecordBatch]:
        return map(_as_spark_has_it, logs[number].open().internal_batches(record, isolation=isolation))

    numbers = spark.range(0, len(logs), 1, max(1, len(logs)))
    return numbers.mapInArrow(by_number(read), from_arrow_schema(schema, prefer_timestamp_ntz=False))


def _as_spark_has_it(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert timestamps to microseconds, the unit of Spark."""
    import pyarrow as pa

    at = batch.schema.get_field_index("timestamp")
    micros = pa.timestamp("us", tz="UTC")
    return batch.set_column(at, pa.field("timestamp", micros), batch.column(at).cast(micros))

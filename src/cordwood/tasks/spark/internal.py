"""Records of Kafka's internal topics as a Spark DataFrame: a task per log, which decodes it without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood.common.types import Isolation
from cordwood.storage.log.source import LogSource
from cordwood.tasks.spark.worker import by_number

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


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

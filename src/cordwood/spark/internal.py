"""Records of internal topics of Kafka as a Spark DataFrame: a task per log, which decodes it without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.fs.base import Store
from cordwood.fs.location import Location
from cordwood.storage.log.view import LogView
from cordwood.types import Isolation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class InternalLog:
    """A log that a task reads.

    Attributes:
        location: of the store that it is in.
        path: of its directory.
        log_start_offset: from the log directory's checkpoint.
        live: a broker writes to it.
    """

    location: Location[Store]
    path: str
    log_start_offset: int
    live: bool

    def open(self) -> LogView:
        """The log."""
        return LogView(self.path, fs=self.location.open(), live=self.live, log_start_offset=self.log_start_offset)


def internal_dataframe(
    spark: SparkSession, logs: Sequence[InternalLog], record: str, schema: pa.Schema, isolation: Isolation | None
) -> DataFrame:
    """The records of one type in some logs.

    Args:
        spark: the session.
        logs: of one internal topic.
        record: the record type.
        schema: of its records.
        isolation: see `LogView.columns`.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for found in logs[number].open().internal_batches(record, isolation=isolation):
                    yield _as_spark_has_it(found)

    numbers = spark.range(0, len(logs), 1, max(1, len(logs)))
    return numbers.mapInArrow(read, from_arrow_schema(schema, prefer_timestamp_ntz=False))


def _as_spark_has_it(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark's times are in microseconds."""
    import pyarrow as pa

    at = batch.schema.get_field_index("timestamp")
    micros = pa.timestamp("us", tz="UTC")
    return batch.set_column(at, pa.field("timestamp", micros), batch.column(at).cast(micros))

"""A data source of prepared batches, to measure how fast Spark reads from any Python data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cordwood.common.types import override

NAME = "memory-of-cordwood"
#: About the rows of a log's window.
_BATCH_ROWS = 32_768


class MemorySource(DataSource):
    """Rows with one column, `value`; options: number of `rows`, `valueBytes` and `tasks`."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        return "value BINARY"

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(*(int(self.options[name]) for name in ("rows", "valueBytes", "tasks")))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int, tasks: int) -> None:
        self._value_bytes = value_bytes
        self._rows = [rows // tasks + (at < rows % tasks) for at in range(tasks)]

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(rows) for rows in self._rows]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        whole = _batch(_BATCH_ROWS, self._value_bytes)
        for start in range(0, partition.value, _BATCH_ROWS):
            yield whole.slice(0, min(_BATCH_ROWS, partition.value - start))


def _batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    offsets = np.arange(rows + 1, dtype=np.int32) * value_bytes
    data = np.zeros(rows * value_bytes, np.uint8)
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], names=["value"])

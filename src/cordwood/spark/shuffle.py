"""Rows of sections in Arrow, as Spark's shuffle moves them from task to task."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from cordwood.engine.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

KEYS = ("stage", "target", "run", "chunk", "number", "part")
ROW_SCHEMA = ", ".join([*(f"{name} bigint" for name in KEYS), "data binary"])
#: Rows that go from Python to Java at once have about so many bytes.
_BATCH_BYTES = 4 << 20


def in_order(rows: DataFrame, count: int) -> DataFrame:
    """Rows in so many partitions, all rows of a target in one of them, sorted."""
    from pyspark.sql import functions as f

    return rows.repartitionById(count, (f.col("target") % count).cast("int")).sortWithinPartitions(*KEYS)


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

"""The rows of a table as Arrow: decoded keys and values, and the position of each record.

key, value                      with the types of their decoders
partition, offset, timestamp    of the key's last record; the timestamp is null if the record has none, or if it is
                                after the year 9999, for which Python and Spark have no date
deleted                         the record is a tombstone; only in a table with deletes
undecodable                     key or value is null because it cannot be decoded; only if that raises no error
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cordwood.record.columns import RecordColumns
from cordwood.storage.log.arrow import byte_strings, in_calendar, numbers
from cordwood.tables.decoders.decoder import Decoder
from cordwood.tables.decoders.decoder import undecodable as undecodable_error
from cordwood.tables.newest import NewestTask
from cordwood.tables.runs import TableRun

#: Spark's times are in microseconds.
TIME_TYPE = pa.timestamp("us", tz="UTC")
#: Small batches are joined up to this number of rows or bytes.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 << 20


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The columns of a table and the decoders of keys and values.

    Attributes:
        deletes: include tombstones, marked in a column `deleted`.
        null_undecodable: replace undecodable keys and values by null instead of raising an error.
    """

    key: Decoder
    value: Decoder
    deletes: bool = False
    null_undecodable: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        fields = [
            pa.field("key", self.key.type),
            pa.field("value", self.value.type),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", TIME_TYPE),
        ]
        if self.deletes:
            fields.append(pa.field("deleted", pa.bool_(), nullable=False))
        if self.null_undecodable:
            fields.append(pa.field("undecodable", pa.bool_(), nullable=False))
        return pa.schema(fields)

    def batches(self, tasks: Iterable[NewestTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table, or of a part of it.

        Raises:
            UndecodableError: a decoder cannot decode a key or value.
        """
        held: list[pa.RecordBatch] = []
        for run, columns in ((task.run, columns) for task in tasks for columns in task.records()):
            held.append(self._rows(run, columns))
            del columns
            if sum(one.num_rows for one in held) >= _BATCH_ROWS or sum(one.nbytes for one in held) >= _BATCH_BYTES:
                yield _joined(held)
                held = []
        if held:
            yield _joined(held)

    def _rows(self, run: TableRun, columns: RecordColumns) -> pa.RecordBatch:
        if not self.deletes:
            columns = columns.select(columns.rows["value_size"] >= 0)
        data, rows = columns.data, columns.rows
        key = self.key.decode(byte_strings(data, rows["key_start"], rows["key_size"], pa.binary()))
        value = self.value.decode(byte_strings(data, rows["value_start"], rows["value_size"], pa.binary()))
        undecodable = np.zeros(rows.size, np.bool_)
        for name, found in (("key", key), ("value", value)):
            if found.problems and not self.null_undecodable:
                raise undecodable_error(name, found, run.path, rows["offset"])
            undecodable[list(found.problems)] = True
        has_time = (rows["timestamp"] >= 0) & in_calendar(rows["timestamp"])
        micros = np.where(has_time, rows["timestamp"], 0) * 1000
        arrays = [
            key.values,
            value.values,
            numbers(np.full(rows.size, run.partition, np.int32), pa.int32()),
            numbers(rows["offset"], pa.int64()),
            numbers(micros, TIME_TYPE, has_time),
        ]
        if self.deletes:
            arrays.append(pa.array(rows["value_size"] < 0))
        if self.null_undecodable:
            arrays.append(pa.array(undecodable))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches() or [batches[0]]
    return joined

"""Convert records to rows of the data source: one Arrow array for each requested column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.common.types import Codec, TimestampType, TopicPartition
from cordwood.kernels.layout import CODEC_MASK, LOG_APPEND_TIME
from cordwood.record.columns import RecordColumns
from cordwood.record.headers import is_transactional_data
from cordwood.storage.log.arrow import byte_strings, header_lists, in_calendar, numbers
from cordwood.storage.log.transactions import Transactions
from cordwood.tables.decoders.decoder import undecodable
from cordwood.tables.source.schema import AS_BYTES, UNDECODABLE, RowFormat

_SEQUENCE_MAX = 2**31 - 1
_FATES = ("committed", "aborted", "open")
_COMMITTED, _ABORTED, _OPEN, _NO_TRANSACTION = range(4)

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
#: Arrow types by Spark's names of types.
_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", _HEADER)),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of records.

    Attributes:
        transactions: transactions that the records may belong to.
    """

    partition: TopicPartition
    path: str
    transactions: Transactions


def to_rows(
    columns: RecordColumns, names: Sequence[str], origin: Origin, row_format: RowFormat = AS_BYTES
) -> pa.RecordBatch:
    """Convert records to a record batch with these columns.

    Raises:
        BatchTooLargeError: keys, values or headers of the records have 2 GiB or more.
        UndecodableError: a decoder cannot decode a key or value.
    """
    made: dict[str, pa.Array] = {}
    wrong = np.zeros(columns.rows.size, np.bool_)
    for name, decoder in row_format.decoders.items():
        if name not in names and UNDECODABLE not in names:
            continue
        found = decoder.decode(_MADE[name](columns, origin))
        if found.problems and not row_format.null_undecodable:
            raise undecodable(name, found, origin.path, columns.rows["offset"])
        made[name] = found.values
        wrong[list(found.problems)] = True
    made[UNDECODABLE] = pa.array(wrong)
    arrays = [made[name] if name in made else _MADE[name](columns, origin) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def keys(columns: RecordColumns) -> pa.Array:
    """Return the keys of records as an Arrow array."""
    return byte_strings(columns.data, columns.rows["key_start"], columns.rows["key_size"], pa.binary())


def microseconds(columns: RecordColumns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the timestamps in microseconds, and where Spark has a date for them; the other timestamps are 0."""
    timestamps = columns.rows["timestamp"]
    valid = in_calendar(timestamps)
    return np.where(valid, timestamps, 0) * 1000, valid


def _values(columns: RecordColumns, _: Origin) -> pa.Array:
    return byte_strings(columns.data, columns.rows["value_start"], columns.rows["value_size"], pa.binary())


def _timestamps(columns: RecordColumns, _: Origin) -> pa.Array:
    found, valid = microseconds(columns)
    return numbers(found, _TYPES["timestamp"], valid)


def _timestamp_types(columns: RecordColumns, _: Origin) -> pa.Array:
    batches = columns.batches
    kinds = np.where(
        batches["attributes"] & LOG_APPEND_TIME != 0, TimestampType.LOG_APPEND_TIME, TimestampType.CREATE_TIME
    )
    kinds = np.where(batches["magic"] == 0, TimestampType.NONE, kinds).astype(np.int32)
    return numbers(kinds[columns.rows["batch"]], pa.int32())


def _headers(columns: RecordColumns, _: Origin) -> pa.Array:
    rows = columns.rows
    kind = _TYPES["array<struct<key:string,value:binary>>"]
    return header_lists(columns.data, rows["headers_start"], rows["header_count"], kind, none_is_null=True)


def _of_batch(field: str, kind: pa.DataType) -> Callable[[RecordColumns, Origin], pa.Array]:
    """Return a function that makes a column from a number in each record's batch header; negative ones are null."""

    def made(columns: RecordColumns, _: Origin) -> pa.Array:
        found = columns.batches[field][columns.rows["batch"]].astype(kind.to_pandas_dtype())
        return numbers(found, kind, found >= 0)

    return made


def _of_record(field: str) -> Callable[[RecordColumns, Origin], pa.Array]:
    """Return a function that makes a column from a size in each record; negative ones are null."""

    def made(columns: RecordColumns, _: Origin) -> pa.Array:
        found = columns.rows[field]
        return numbers(found, pa.int32(), found >= 0)

    return made


def _sequences(columns: RecordColumns, _: Origin) -> pa.Array:
    batches, rows = columns.batches, columns.rows
    base = batches["base_sequence"][rows["batch"]].astype(np.int64)
    delta = rows["offset"] - batches["base_offset"][rows["batch"]]
    # After the largest sequence, the next one is 0.
    found = ((base + delta) & _SEQUENCE_MAX).astype(np.int32)
    return numbers(found, pa.int32(), base >= 0)


def _codecs(columns: RecordColumns, _: Origin) -> pa.Array:
    labels = pa.array([codec.label for codec in Codec], pa.string())
    return labels.take(pa.array((columns.batches["attributes"] & CODEC_MASK)[columns.rows["batch"]].astype(np.int32)))


def _fates(columns: RecordColumns, origin: Origin) -> pa.Array:
    batches, known = columns.batches, origin.transactions
    found = np.where(is_transactional_data(batches), _COMMITTED, _NO_TRANSACTION).astype(np.int32)
    found[known.open_data(batches)] = _OPEN
    found[known.aborted_data(batches)] = _ABORTED
    rows = found[columns.rows["batch"]]
    return pa.array([*_FATES, None], pa.string()).take(pa.array(rows))


def _same(text: Callable[[Origin], str]) -> Callable[[RecordColumns, Origin], pa.Array]:
    """Return a function that makes a column with the same text in each row."""

    def made(columns: RecordColumns, origin: Origin) -> pa.Array:
        count, name = columns.rows.size, np.frombuffer(text(origin).encode(), np.uint8)
        offsets = np.arange(count + 1, dtype=np.int64) * name.size
        if offsets[-1] > np.iinfo(np.int32).max:  # a path of 4 KiB in half a million rows
            return pa.array([text(origin)], pa.string()).take(pa.array(np.zeros(count, np.int32)))
        data = pa.py_buffer(np.tile(name, count))
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets.astype(np.int32)), data])

    return made


_MADE: Mapping[str, Callable[[RecordColumns, Origin], pa.Array]] = {
    "key": lambda columns, _: keys(columns),
    "value": _values,
    "topic": _same(lambda origin: origin.partition.topic),
    "partition": lambda columns, origin: numbers(
        np.full(columns.rows.size, origin.partition.partition, np.int32), pa.int32()
    ),
    "offset": lambda columns, _: numbers(columns.rows["offset"], pa.int64()),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
    "keySize": _of_record("key_size"),
    "valueSize": _of_record("value_size"),
    "batchOffset": _of_batch("base_offset", pa.int64()),
    "batchSize": _of_batch("size_bytes", pa.int64()),
    "codec": _codecs,
    "leaderEpoch": _of_batch("leader_epoch", pa.int32()),
    "producerId": _of_batch("producer_id", pa.int64()),
    "producerEpoch": _of_batch("producer_epoch", pa.int32()),
    "sequence": _sequences,
    "transaction": _fates,
    "file": _same(lambda origin: origin.path),
    "position": _of_batch("position", pa.int64()),
}

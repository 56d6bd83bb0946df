"""Records as Arrow record batches.

Nulls have the same meaning as in Kafka: a record without a key, a tombstone, a header without value. A negative
timestamp, such as Kafka's -1 for "none", becomes null, too.

Records of one type in Kafka's internal topics are decoded, into these columns:

    partition, offset, timestamp     as for all records
    version                          of the value; null for a null value, which deletes its key's record
    key, value                       structs, with a column per field; topics without keys have no key
    rest                             bytes after the known fields of a value, as in a later version; else null

Arrays are lists, uuids are text as Kafka writes them. Fields that a version lacks have their defaults. Decoding takes
some 20 µs per record, which is enough: these logs are compacted, and small compared with the topics that they describe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.common.errors import BatchTooLargeError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.kernels.decode import gather, lay_out, list_headers
from cordwood.kernels.layout import U8Array
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.formats.messages.schema import Field, RecordType
from cordwood.storage.formats.messages.topics import InternalTopic
from cordwood.storage.log.internal import to_internal_records

Int32Array = npt.NDArray[np.int32]

#: A single key or value above this size is not copied: Arrow's array references the decoded bytes.
_COPIED_BYTES_MAX = 4 << 20

#: The years 1 to 9999 in milliseconds, without the first and the last day: in some time zones they are outside.
_CALENDAR_MS = (-62_135_510_400_000, 253_402_214_399_999)

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int8(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("header", _HEADER, nullable=False)), nullable=False),
    ]
)


def to_arrow(columns: RecordColumns, partition: TopicPartition | None = None) -> pa.RecordBatch:
    """Convert decoded columns to one record batch of `SCHEMA`; copies the bytes, except those of a large record.

    Args:
        partition: the records' partition; None leaves topic and partition null.

    Raises:
        BatchTooLargeError: keys or values of 2 GiB and more in one batch.
    """
    data, rows = columns.data, columns.rows
    count = rows.size
    if partition is None:
        places = [pa.nulls(count, SCHEMA.field("topic").type), pa.nulls(count, pa.int32())]
    else:
        name = np.frombuffer(partition.topic.encode(), np.uint8)
        topics = byte_strings(name, np.zeros(1, np.int32), np.array([name.size], np.int32), pa.string())
        places = [
            pa.DictionaryArray.from_arrays(numbers(np.zeros(count, np.int8), pa.int8()), topics),
            numbers(np.full(count, partition.partition, np.int32), pa.int32()),
        ]
    return pa.RecordBatch.from_arrays(
        [
            *places,
            numbers(rows["offset"], pa.int64()),
            numbers(rows["timestamp"], SCHEMA.field("timestamp").type, rows["timestamp"] >= 0),
            byte_strings(data, rows["key_start"], rows["key_size"], pa.binary()),
            byte_strings(data, rows["value_start"], rows["value_size"], pa.binary()),
            header_lists(data, rows["headers_start"], rows["header_count"], SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


def numbers(values: npt.NDArray[np.generic], kind: pa.DataType, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert numbers to an Arrow array of that type without a copy; numbers that are not `valid` become null."""
    # Build it from buffers: pa.array() checks whether its argument is from pandas, and imports all of pandas for that.
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, values.size, [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def in_calendar(timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark timestamps that are dates in Python and Spark in every time zone; a producer may set any other."""
    return (timestamps >= _CALENDAR_MS[0]) & (timestamps <= _CALENDAR_MS[1])


def byte_strings(data: U8Array, starts: Int32Array, sizes: Int32Array, kind: pa.DataType) -> pa.Array:
    """Convert byte strings scattered in `data` to an Arrow array of that type; a negative size is null.

    Raises:
        BatchTooLargeError: they exceed the size of an Arrow array.
    """
    count = sizes.size
    offsets = np.empty(count + 1, np.int32)
    validity = np.zeros((count + 7) // 8, np.uint8)
    total, nulls = lay_out(sizes, offsets, validity)
    if total < 0:
        raise BatchTooLargeError("keys or values of more than 2 GiB do not fit one Arrow array")
    if count == 1 and total > _COPIED_BYTES_MAX:
        target = data[int(starts[0]) :][:total]
    else:
        target = np.empty(total, np.uint8)
        gather(data.ctypes.data, starts, offsets, target.ctypes.data)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(target)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def texts(data: U8Array, starts: Int32Array, sizes: Int32Array, kind: pa.DataType) -> pa.Array:
    """Convert texts scattered in `data`; see `byte_strings`.

    Bytes that are not UTF-8 become replacement characters, as in Kafka's clients.

    Raises:
        BatchTooLargeError: they exceed the size of an Arrow array.
    """
    found = byte_strings(data, starts, sizes, kind)
    try:
        if sizes.size:
            found.validate(full=True)
    except pa.ArrowInvalid:
        raw = byte_strings(data, starts, sizes, pa.binary()).to_pylist()
        return pa.array([None if one is None else str(one, "utf-8", "replace") for one in raw], kind)
    return found


def header_lists(
    data: U8Array, starts: Int32Array, counts: Int32Array, kind: pa.DataType, *, none_is_null: bool = False
) -> pa.Array:
    """Convert the headers of records to an Arrow array of lists.

    Args:
        data: uint8[bytes] that contains the headers.
        starts, counts: int32[records], position and number of each record's headers.
        kind: type of the array: lists of structs of a string and a binary.
        none_is_null: use null instead of an empty list for a record without headers.

    Raises:
        BatchTooLargeError: their names or values are 2 GiB and more.
    """
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    total = int(offsets[-1])
    places = [np.empty(total, np.int32) for _ in range(4)]
    if total:
        list_headers(data.ctypes.data, starts, counts, *places)
    name_starts, name_sizes, value_starts, value_sizes = places
    names = texts(data, name_starts, name_sizes, pa.string())
    values = byte_strings(data, value_starts, value_sizes, pa.binary())
    headers = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    bitmap = pa.py_buffer(np.packbits(counts > 0, bitorder="little")) if none_is_null else None
    return pa.Array.from_buffers(kind, counts.size, [bitmap, pa.py_buffer(offsets)], children=[headers])


# ---- internal topics -------------------------------------------------------------------------------------------------

_NUMBERS = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "uint16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
}
_KINDS = {**_NUMBERS, "uuid": pa.string(), "string": pa.string(), "bytes": pa.binary()}


def internal_schema(record: RecordType) -> pa.Schema:
    """Return the columns of a table of records of one type."""
    key = [] if record.key is None else [pa.field("key", _struct_kind(record.key.fields))]
    return pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("version", pa.int16()),
            *key,
            pa.field("value", _struct_kind(record.value.fields)),
            pa.field("rest", pa.binary()),
        ]
    )


def _kind(field: Field) -> pa.DataType:
    item = _struct_kind(field.fields) if field.item == "struct" else _KINDS[field.item]
    return pa.list_(pa.field("item", item, nullable=False)) if field.is_array else item


def _struct_kind(fields: tuple[Field, ...]) -> pa.DataType:
    return pa.struct([pa.field(one.name, _kind(one)) for one in fields])


def record_type(topic: InternalTopic, name: str) -> RecordType:
    """Return a record type of a topic by its name.

    Raises:
        RequestError: the topic has no such type.
    """
    found = topic.record_type(name)
    if found is None:
        known = ", ".join(one.name for one in topic.records.values())
        raise RequestError(f"{topic.name} has no records of type {name}; there are {known}")
    return found


def to_internal_arrow(
    columns: RecordColumns, topic: InternalTopic, record: RecordType, partition: int, on_damage: OnDamage
) -> pa.RecordBatch:
    """Return the records of one type as one record batch of `internal_schema`."""
    decoded = to_internal_records(columns, topic, partition, on_damage, read_protocol=False)
    records = [each for each in decoded if each.type == record.name]
    schema = internal_schema(record)
    values: dict[str, list[Any]] = {
        "partition": [partition] * len(records),
        "offset": [each.offset for each in records],
        "timestamp": [each.timestamp if each.timestamp >= 0 else None for each in records],
        "version": [each.version for each in records],
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "rest": [each.rest or None for each in records],
    }
    return pa.RecordBatch.from_arrays([pa.array(values[field.name], field.type) for field in schema], schema=schema)

"""Records as Arrow record batches.

Null means what it means in Kafka: a record without a key, a tombstone, a header without value. A timestamp of -1 is
"none" and becomes null too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.errors import BatchTooLargeError
from cordwood.kernels.gather import gather, lay_out, list_headers
from cordwood.kernels.layout import U8Array
from cordwood.record.columns import RecordColumns
from cordwood.types import TopicPartition

Int32Array = npt.NDArray[np.int32]

#: A key or value above this that stands alone is not copied: Arrow's array holds on to the decoded bytes.
_COPIED_BYTES_MAX = 4 << 20

#: The years 1 to 9999 in milliseconds, without the first and the last day: another time zone may not have these.
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
    """Decoded columns as one record batch of `SCHEMA`; the bytes are copied, but for those of a large record.

    Args:
        partition: where they are from; None leaves topic and partition null.

    Raises:
        BatchTooLargeError: keys or values of 2 GiB and more in one go.
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
    """Numbers as an Arrow array of that kind, without a copy; null where they are not `valid`."""
    # From buffers, because pa.array() looks whether it is given something of pandas, and imports all of it for that.
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, values.size, [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def in_calendar(timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark timestamps that Python and Spark have a date for, in every time zone; a producer may set any other."""
    return (timestamps >= _CALENDAR_MS[0]) & (timestamps <= _CALENDAR_MS[1])


def byte_strings(data: U8Array, starts: Int32Array, sizes: Int32Array, kind: pa.DataType) -> pa.Array:
    """Byte strings that are scattered in `data`, as an Arrow array of that kind; a negative size is null.

    Raises:
        BatchTooLargeError: they are more than an Arrow array can hold.
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
    """Texts that are scattered in `data`; see `byte_strings`.

    What is not UTF-8 gets replacement characters, as in Kafka's clients.

    Raises:
        BatchTooLargeError: they are more than an Arrow array can hold.
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
    """The headers of records as an Arrow array of lists.

    Args:
        data: uint8[bytes] that the headers are in.
        starts, counts: int32[records], position and number of each record's headers.
        kind: of the array: lists of structs of a string and a binary.
        none_is_null: a record without headers has null instead of an empty list.

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

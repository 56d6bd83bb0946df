"""Records of Kafka's internal topics as Arrow, for whole logs: no object is made for a record.

A table holds the records of one type, a row each:

    partition, offset, timestamp     where and when, as in `storage.log.arrow`
    version                          of the value; null for a null value, which deletes what the key names
    key, value                       structs, with a column per field; topics without keys have no key
    rest                             bytes of a value that nothing is known of, as of a later version; else null

Arrays are lists, uuids are text as Kafka writes them. Fields that a version does not have are their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cordwood.errors import RequestError
from cordwood.kernels import messages as kernel
from cordwood.kernels.layout import RecordRows, U8Array
from cordwood.kernels.messages import BoolArray, Int64Array
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.formats.messages import program
from cordwood.storage.formats.messages.program import Layout, Tables
from cordwood.storage.formats.messages.schema import ZERO_UUID, Field, RecordType
from cordwood.storage.formats.messages.topics import Framing, InternalTopic
from cordwood.storage.log.arrow import byte_strings, numbers, texts
from cordwood.storage.log.internal import to_internal_records

_FRAMINGS = {Framing.COORDINATOR: kernel.COORDINATOR, Framing.FRAMED: kernel.FRAMED}
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


# ---- tables ----------------------------------------------------------------------------------------------------------


def internal_schema(record: RecordType) -> pa.Schema:
    """The columns of a table of records of one type."""
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
    """A record type of a topic by its name.

    Raises:
        RequestError: there is none.
    """
    found = topic.record_type(name)
    if found is None:
        known = ", ".join(one.name for one in topic.records.values())
        raise RequestError(f"{topic.name} has no records of type {name}; there are {known}")
    return found


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Records of one type among others.

    Attributes:
        rows: RECORD_ROW[records].
        versions: int64[records], of their values; `kernel.NO_VALUE` of null values.
        key: their keys; None for topics without.
    """

    rows: RecordRows
    versions: Int64Array
    key: Tables | None
    value: Tables


def read_type(columns: RecordColumns, topic: InternalTopic, record: RecordType, on_damage: OnDamage) -> TypedRows:
    """The records of one type, as tables; records that cannot be read are damage, and left out."""
    rows = columns.rows
    prefixes = kernel.Prefixes(*(np.empty(rows.size, np.int64) for _ in range(3)))
    kernel.read_prefixes(columns.data.ctypes.data, rows, _FRAMINGS[topic.framing], prefixes)
    types, versions, bodies = prefixes
    bad = (types == kernel.BAD_PREFIX) | ((types == record.number) & (versions == kernel.BAD_PREFIX))
    chosen = (types == record.number) & ~bad
    key, value, failed = _read(columns.data, rows[chosen], record, versions[chosen], bodies[chosen])
    if bad.any() or failed.any():
        bad[np.flatnonzero(chosen)[failed]] = True
        _report(columns, bad, topic, on_damage)
        chosen &= ~bad
        key, value, _ = _read(columns.data, rows[chosen], record, versions[chosen], bodies[chosen])
    return TypedRows(rows[chosen], versions[chosen], key, value)


def _read(
    data: U8Array, rows: RecordRows, record: RecordType, versions: Int64Array, bodies: Int64Array
) -> tuple[Tables | None, Tables, BoolArray]:
    """Keys, values, and bool[rows]: which could not be read."""
    # Rows have 32-bit positions, and a message may end beyond them.
    value_ends = rows["value_start"].astype(np.int64) + np.maximum(rows["value_size"], 0)
    value = program.read(program.program_of(record.value), data, bodies, value_ends, versions)
    failed = np.asarray((value.statuses < 0) & (versions <= record.value.last_version))
    if record.key is None:
        return None, value, failed
    starts = rows["key_start"].astype(np.int64) + 2
    key_ends = rows["key_start"].astype(np.int64) + rows["key_size"]
    key = program.read(program.program_of(record.key), data, starts, key_ends, np.zeros(rows.size, np.int64))
    return key, value, np.asarray(failed | (key.statuses < 0))


def _report(columns: RecordColumns, bad: BoolArray, topic: InternalTopic, on_damage: OnDamage) -> None:
    selected = columns.select(bad)
    for one in to_internal_records(selected, topic, 0, on_damage):
        raise AssertionError(f"the kernel cannot read what the codec reads: {one}")


def to_internal_arrow(
    columns: RecordColumns, topic: InternalTopic, record: RecordType, partition: int, on_damage: OnDamage
) -> pa.RecordBatch:
    """The records of one type as one record batch of `internal_schema`."""
    found = read_type(columns, topic, record, on_damage)
    rows, data = found.rows, columns.data
    there = found.versions != kernel.NO_VALUE
    rest_sizes = rows["value_start"].astype(np.int64) + rows["value_size"] - found.value.stops
    rest_sizes = np.where(there & (rest_sizes > 0), rest_sizes, -1).astype(np.int32)
    key = [] if found.key is None else [_struct(found.key.fields, found.key, data)]
    schema = internal_schema(record)
    return pa.RecordBatch.from_arrays(
        [
            numbers(np.full(rows.size, partition, np.int32), pa.int32()),
            numbers(rows["offset"], pa.int64()),
            numbers(rows["timestamp"], schema.field("timestamp").type, rows["timestamp"] >= 0),
            numbers(found.versions.astype(np.int16), pa.int16(), there),
            *key,
            _struct(found.value.fields, found.value, data, there),
            byte_strings(data, found.value.stops.astype(np.int32), rest_sizes, pa.binary()),
        ],
        schema=schema,
    )


def _struct(fields: tuple[Layout, ...], tables: Tables, data: U8Array, there: BoolArray | None = None) -> pa.Array:
    kind = _struct_kind(tuple(one.field for one in fields))
    if not fields:
        count = len(tables.rows[0])
        bitmap = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
        return pa.Array.from_buffers(kind, count, [bitmap])
    arrays = [_array(one, tables, data) for one in fields]
    mask = None if there is None or there.all() else pa.array(~there)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def _array(layout: Layout, tables: Tables, data: U8Array) -> pa.Array:
    field, table, slot = layout.field, tables.rows[layout.table], layout.slot
    if field.is_array:
        counts = table[:, slot]
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(np.maximum(counts, 0), dtype=np.int32)])
        items = _struct(layout.inner, tables, data) if field.item == "struct" else _array(layout.inner[0], tables, data)
        null = counts < 0
        mask = pa.array(null) if null.any() else None
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=_kind(field), mask=mask)
    if field.type == "struct":
        return _struct(layout.inner, tables, data, ~program.null_of(layout, tables))
    if field.type == "uuid":
        return _uuids(table[:, slot], data)
    if field.type in ("string", "bytes"):
        starts, sizes = (np.ascontiguousarray(table[:, slot + i]).astype(np.int32) for i in (0, 1))
        return (texts if field.type == "string" else byte_strings)(data, starts, sizes, _KINDS[field.type])
    column = np.ascontiguousarray(table[:, slot])
    if field.type == "float64":
        return numbers(column.view(np.float64), pa.float64())
    if field.type == "bool":
        return pa.array(column.astype(np.bool_))
    kind = _NUMBERS[field.type]
    return numbers(column.astype(kind.to_pandas_dtype()), kind)


_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_UUID_BYTES, _UUID_CHARACTERS = 16, len(ZERO_UUID)


def _uuids(starts: Int64Array, data: U8Array) -> pa.Array:
    """Uuids as Kafka writes them: 22 digits of base64, with 6 bits each."""
    padded = np.zeros((starts.size, 18), np.uint8)
    given = starts >= 0
    padded[given, :_UUID_BYTES] = data[starts[given, None] + np.arange(_UUID_BYTES)]
    groups = padded.reshape(-1, 6, 3).astype(np.uint32)
    bits = groups[..., 0] << 16 | groups[..., 1] << 8 | groups[..., 2]
    digits = (bits[..., None] >> np.array([18, 12, 6, 0], np.uint32)) & 63
    characters = _BASE64[digits.reshape(-1, 24)[:, :_UUID_CHARACTERS]]
    offsets = np.arange(starts.size + 1, dtype=np.int32) * _UUID_CHARACTERS
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters))]
    return pa.Array.from_buffers(pa.string(), starts.size, buffers)

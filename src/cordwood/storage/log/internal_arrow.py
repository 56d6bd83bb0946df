"""Records of one type in Kafka's internal topics, as Arrow.

    partition, offset, timestamp     as in `storage.log.arrow`
    version                          of the value; null for a null value, which deletes its key's record
    key, value                       structs, with a column per field; topics without keys have no key
    rest                             bytes after the known fields of a value, as in a later version; else null

Arrays are lists, uuids are text as Kafka writes them. Fields that a version lacks have their defaults. Decoding takes
some 20 µs per record, which is enough: these logs are compacted, and small compared with the topics that they describe.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cordwood.common.errors import RequestError
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.formats.messages.schema import Field, RecordType
from cordwood.storage.formats.messages.topics import InternalTopic
from cordwood.storage.log.internal import to_internal_records

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

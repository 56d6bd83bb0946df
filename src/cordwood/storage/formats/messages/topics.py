"""Decodes the records of Kafka's internal topics, whose framings differ.

    coordinator   __consumer_offsets, __transaction_state, __share_group_state
                  key    i16 record type, message            the key's version is always 0
                  value  i16 version, message                null deletes the entry of the key
    framed        __cluster_metadata, __remote_log_metadata
                  value  uvarint frame version (1), uvarint record type, uvarint version, message

An unknown type, and a later version than the known ones, are not errors: the result holds as much as can be decoded.
Bytes that do not match their record type raise CorruptMessageError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from cordwood.common.errors import CorruptMessageError
from cordwood.common.types import ControlType
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC
from cordwood.storage.formats.messages.coordinator_records import (
    GROUP_METADATA,
    GROUP_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    with_protocol,
)
from cordwood.storage.formats.messages.metadata_records import CLUSTER_RECORDS, CONTROL_RECORDS, REMOTE_LOG_RECORDS
from cordwood.storage.formats.messages.schema import RecordType, decode, read_short, read_uvarint

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
REMOTE_LOG_METADATA = "__remote_log_metadata"

#: The only version of the frame.
FRAME_VERSION = 1
#: Largest record type and version; a larger one is damage, as for Kafka. Source: AbstractApiMessageSerde.
INT16_MAX = 2**15 - 1
_SHORT_BYTES = 2


class Framing(Enum):
    """The position of a record's type and version."""

    COORDINATOR = "coordinator"
    FRAMED = "framed"


@dataclass(frozen=True, slots=True, eq=False)
class InternalTopic:
    """One of Kafka's own topics."""

    name: str
    framing: Framing
    records: Mapping[int, RecordType]

    def record_type(self, name: str) -> RecordType | None:
        """Return the record type with this name, or None."""
        return next((one for one in self.records.values() if one.name == name), None)


INTERNAL_TOPICS: Mapping[str, InternalTopic] = {
    topic.name: topic
    for topic in (
        InternalTopic(CONSUMER_OFFSETS, Framing.COORDINATOR, GROUP_RECORDS),
        InternalTopic(TRANSACTION_STATE, Framing.COORDINATOR, TRANSACTION_RECORDS),
        InternalTopic(SHARE_GROUP_STATE, Framing.COORDINATOR, SHARE_RECORDS),
        InternalTopic(CLUSTER_METADATA_TOPIC, Framing.FRAMED, CLUSTER_RECORDS),
        InternalTopic(REMOTE_LOG_METADATA, Framing.FRAMED, REMOTE_LOG_RECORDS),
    )
}


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A decoded record of an internal topic.

    Attributes:
        type: its record type, or None if unknown.
        version: version of the value, or None if the value is null.
        key: fields by name; None for topics without keys.
        value: fields by name; None if it is null.
        rest: bytes of the value that could not be decoded.
        problem: reason for an incomplete result: an unknown type or version; else empty.
    """

    type: str | None
    number: int
    version: int | None = None
    key: Mapping[str, Any] | None = None
    value: Mapping[str, Any] | None = None
    rest: bytes = b""
    problem: str = ""


def decode_record(
    topic: InternalTopic,
    key: bytes | memoryview | None,
    value: bytes | memoryview | None,
    *,
    read_protocol: bool = True,
) -> DecodedRecord:
    """Decode a data record of an internal topic.

    Args:
        read_protocol: also decode subscriptions and assignments of consumers, which a broker stores as bytes.

    Raises:
        CorruptMessageError: the bytes are not a record of this topic.
    """
    decoded = _FRAMINGS[topic.framing](topic, key, value)
    if read_protocol and decoded.type == GROUP_METADATA.name and decoded.value is not None:
        return replace(decoded, value=with_protocol(decoded.value))
    return decoded


def _coordinator(
    topic: InternalTopic, key: bytes | memoryview | None, value: bytes | memoryview | None
) -> DecodedRecord:
    data = _not_null(key, "key")
    number = read_short(data)
    record = topic.records.get(number)
    if record is None:
        return _unknown(number)
    assert record.key is not None, "records of coordinators have keys"
    key_fields = decode(record.key, 0, data, _SHORT_BYTES).fields
    if value is None:
        return DecodedRecord(record.name, number, key=key_fields)
    return _with_value(record, read_short(value), value, _SHORT_BYTES, key_fields)


def _framed(topic: InternalTopic, key: bytes | memoryview | None, value: bytes | memoryview | None) -> DecodedRecord:
    data = _not_null(value, "value")
    number, version, start = read_frame(data)
    record = topic.records.get(number)
    return _unknown(number) if record is None else _with_value(record, version, data, start, None)


_FRAMINGS: Mapping[Framing, Callable[..., DecodedRecord]] = {
    Framing.COORDINATOR: _coordinator,
    Framing.FRAMED: _framed,
}


def read_frame(data: bytes | memoryview) -> tuple[int, int, int]:
    """Decode the frame before a message: record type, version, and the position of the message."""
    frame_version, at = read_uvarint(data, 0, len(data))
    if frame_version != FRAME_VERSION:
        raise CorruptMessageError(f"frame version {frame_version}, not {FRAME_VERSION}")
    number, at = read_uvarint(data, at, len(data))
    version, at = read_uvarint(data, at, len(data))
    for what, value in (("record type", number), ("version", version)):
        if value > INT16_MAX:
            raise CorruptMessageError(f"{what} {value}, above the largest, {INT16_MAX}")
    return number, version, at


def decode_control_record(kind: ControlType, value: bytes | memoryview | None) -> DecodedRecord:
    """Decode a control record of KRaft's own log, by the type in its key.

    Raises:
        CorruptMessageError: the bytes are not a record of that type.
    """
    record = CONTROL_RECORDS.get(kind)
    if record is None:
        return DecodedRecord(None, kind, problem=f"control record type {int(kind)} is not known")
    data = _not_null(value, "value")
    return _with_value(record, read_short(data), data, 0, None)


def _not_null(data: bytes | memoryview | None, what: str) -> bytes | memoryview:
    if data is None:
        raise CorruptMessageError(f"a record whose {what} is null")
    return data


def _unknown(number: int) -> DecodedRecord:
    return DecodedRecord(None, number, problem=f"record type {number} is not known")


def _with_value(
    record: RecordType, version: int, data: bytes | memoryview, start: int, key: Mapping[str, Any] | None
) -> DecodedRecord:
    decoded = decode(record.value, version, data, start)
    problem = decoded.problem
    if not problem and decoded.is_later:
        problem = f"{record.value.name} of version {version}: the last one known is {record.value.last_version}"
    rest = bytes(data[decoded.end :])
    return DecodedRecord(record.name, record.number, version, key, decoded.fields, rest, problem)

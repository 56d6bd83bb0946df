"""Decode records of Kafka's internal topics; `internal_arrow` converts the records of one type to a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordwood.common.errors import CorruptMessageError, RequestError
from cordwood.kernels.layout import is_control
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.formats.filenames import PartitionDirectory
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, InternalTopic, decode_record


@dataclass(frozen=True, slots=True)
class InternalRecord:
    """A record of an internal topic, decoded.

    Attributes:
        offset, timestamp: as in `Record`.
        type: its record type, such as `OffsetCommit`; None if unknown.
        version: version of the value; None for a null value.
        key, value: fields by name; None without a key or value.
        rest: undecoded bytes at the value's end.
        problem: why it is not fully decoded: unknown type or version; else empty.
    """

    partition: int
    offset: int
    timestamp: int
    type: str | None
    version: int | None
    key: Mapping[str, Any] | None
    value: Mapping[str, Any] | None
    rest: bytes = b""
    problem: str = ""


def to_internal_records(
    columns: RecordColumns, topic: InternalTopic, partition: int, on_damage: OnDamage, *, read_protocol: bool = True
) -> Iterator[InternalRecord]:
    """Decode records one by one, and report unreadable ones as damage.

    Args:
        read_protocol: see `decode_record`.
    """
    data = memoryview(np.ascontiguousarray(columns.data))
    for offset, timestamp, batch, key, key_size, value, value_size, _, _ in columns.rows.tolist():
        try:
            one = decode_record(
                topic,
                None if key_size < 0 else data[key : key + key_size],
                None if value_size < 0 else data[value : value + value_size],
                read_protocol=read_protocol,
            )
        except CorruptMessageError as error:
            on_damage(_located(error, columns, batch, offset))
            continue
        yield InternalRecord(
            partition, offset, timestamp, one.type, one.version, one.key, one.value, one.rest, one.problem
        )


def _located(error: CorruptMessageError, columns: RecordColumns, batch: int, offset: int) -> CorruptMessageError:
    error.position, error.offset = int(columns.batches["position"][batch]), offset
    return error


def data_records(columns: RecordColumns) -> RecordColumns:
    """Return the columns without control records."""
    return columns.select(~is_control(columns.batches)[columns.rows["batch"]])


def internal_topic(name: PartitionDirectory | None, path: str) -> tuple[InternalTopic, int]:
    """Return a log's internal topic and its partition.

    Raises:
        RequestError: the log belongs to another topic.
    """
    found = None if name is None else INTERNAL_TOPICS.get(name.topic_partition.topic)
    if name is None or found is None:
        known = ", ".join(INTERNAL_TOPICS)
        raise RequestError(f"{path} is not a partition of one of Kafka's internal topics; these are {known}")
    return found, name.topic_partition.partition

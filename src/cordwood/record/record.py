"""A record, and its encoding in magic 2.

    length            varint   bytes that follow
    attributes        i8       0
    timestamp delta   varlong  from the batch's base timestamp
    offset delta      varint   from the batch's base offset
    key size          varint   -1: null
    key
    value size        varint   -1: null, a tombstone
    value
    header count      varint
      name size       varint
      name            UTF-8
      value size      varint   -1: null
      value

Numbers are zigzag varints: 7 bits per byte, least significant first; the top bit is set in all bytes but the last.

`Record` objects are for output and tests. Code that reads whole logs uses columns (`record.columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.types import NONE
from cordwood.kernels.layout import RecordRows, U8Array

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as returned to a consumer.

    Attributes:
        timestamp: milliseconds since the epoch; -1 if it has none.
        key: None if the record has no key.
        value: None for a tombstone.
        headers: in their original order; names may repeat.
    """

    offset: int
    timestamp: int = NONE
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a zigzag varint that a kernel has checked; return (value, position after it)."""
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


_ONE_BYTE = tuple(bytes([raw]) for raw in range(0x80))


def write_varint(value: int) -> bytes:
    """Encode a number of up to 64 bits as a zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    if 0 <= raw < 0x80:  # most numbers of a record
        return _ONE_BYTE[raw]
    if 0 < raw < 0x4000:
        return bytes((raw & 0x7F | 0x80, raw >> 7))
    encoded = bytearray()
    while raw >= 0x80:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def _sized(data: bytes | None) -> bytes:
    return b"\1" if data is None else write_varint(len(data)) + data


def encode_record(record: Record, *, base_offset: int, base_timestamp: int) -> bytes:
    """Encode a record for a batch of magic 2 with this base offset and base timestamp."""
    timestamp, offset, headers = record.timestamp - base_timestamp, record.offset - base_offset, record.headers
    # The single record of an append, which is common, has neither a timestamp delta nor an offset delta.
    deltas = write_varint(timestamp) + write_varint(offset) if timestamp or offset else b"\0\0"
    body = b"\0" + deltas + _sized(record.key) + _sized(record.value)
    if headers:
        body += write_varint(len(headers)) + b"".join(
            [_sized(name.encode()) + _sized(value) for name, value in headers]
        )
    else:
        body += b"\0"
    return write_varint(len(body)) + body


def read_headers(data: memoryview, at: int, count: int) -> tuple[Header, ...]:
    """Read the headers of a decoded record. As in Kafka's clients, invalid UTF-8 in names is replaced."""
    headers = []
    for _ in range(count):
        size, at = read_varint(data, at)
        name = str(data[at : at + size], "utf-8", "replace")
        at += size
        size, at = read_varint(data, at)
        headers.append((name, None if size < 0 else bytes(data[at : at + size])))
        at += max(size, 0)
    return tuple(headers)


def to_records(data: U8Array, rows: RecordRows) -> Iterator[Record]:
    """Convert rows of decoded columns to objects."""
    view = memoryview(np.ascontiguousarray(data))
    for offset, timestamp, _, key, key_size, value, value_size, headers, header_count in rows.tolist():
        yield Record(
            offset,
            timestamp,
            None if key_size < 0 else bytes(view[key : key + key_size]),
            None if value_size < 0 else bytes(view[value : value + value_size]),
            read_headers(view, headers, header_count) if header_count else (),
        )

"""A record batch read in plain Python: the twin of the fast readers. Magic 2, not compressed.

base_offset i64 | length i32 | leader_epoch i32 | magic i8 | crc u32 | attributes i16 | last_offset_delta i32
base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16 | base_sequence i32 | count i32 | records
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61


class PlainRecord(NamedTuple):
    """One record; headers are pairs of a name and bytes or None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    is_control: bool


def plain_records(data: bytes) -> list[PlainRecord]:
    """All records of a .log file, to the end or to a torn batch."""
    records: list[PlainRecord] = []
    position = 0

    def take(size_bytes: int) -> bytes | None:
        nonlocal position
        position += max(size_bytes, 0)
        return None if size_bytes < 0 else data[position - size_bytes : position]

    def varint() -> int:
        zigzag = shift = 0
        while (byte := (take(1) or b"")[0]) > 0x7F:
            zigzag, shift = zigzag | (byte & 0x7F) << shift, shift + 7
        zigzag |= byte << shift
        return zigzag >> 1 ^ -(zigzag & 1)

    start = 0
    while start + HEADER.size <= len(data):
        base_offset, length, _, magic, _, attributes, _, first, latest, *_, count = HEADER.unpack_from(data, start)
        start, position = start + 12 + length, start + HEADER.size
        if start > len(data):
            break
        assert magic == 2 and attributes & 7 == 0, "only magic 2, not compressed"
        for _ in range(count):
            varint(), take(1)
            timestamp = varint()
            records.append(
                PlainRecord(
                    timestamp=latest if attributes & 8 else first + timestamp,
                    offset=base_offset + varint(),
                    key=take(varint()),
                    value=take(varint()),
                    headers=[(take(varint()) or b"", take(varint())) for _ in range(varint())],
                    is_control=bool(attributes & 0x20),
                )
            )
    return records

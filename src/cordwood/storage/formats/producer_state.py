"""Producer snapshots, `<end offset>.snapshot`: what a broker knows of each producer below an offset.

    0    i16   version, 1
    2    u32   CRC-32C of all bytes from 6 on
    6    i32   number of entries
    10         entries of 46 bytes

    an entry
    0    i64   producer id
    8    i16   producer epoch
    10   i32   last sequence       ┐ of the producer's last batch of data; NONE, NONE, 0 when
    14   i64   last offset         ├ there is none, only markers
    22   i32   offset delta        ┘
    26   i64   timestamp of its last batch or marker
    34   i32   coordinator epoch, NONE if no marker was seen
    38   i64   first offset of the open transaction, or NONE

Everything is big-endian. Of up to five batches that a broker remembers per producer a snapshot keeps the last. Entries
are in no particular order (a hash map's); here they keep the order they have.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from crc32c import crc32c

from cordwood.errors import CorruptFileError
from cordwood.fs.base import Bytes

VERSION = 1

HEADER = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")
CRC_END = 6
assert (HEADER.size, ENTRY.size) == (10, 46)


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What a snapshot says of one producer; the fields in the order of the file."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int


def decode(data: Bytes, path: str | None = None) -> tuple[ProducerEntry, ...]:
    """The entries of a snapshot, in the order of the file.

    Bytes after the announced entries are covered by the checksum and otherwise ignored, as Kafka does.

    Raises:
        CorruptFileError: Kafka would delete the snapshot and try an older one: too short, another version, another
            checksum, or more entries announced than there are.
    """
    data = bytes(data)
    if len(data) < HEADER.size:
        raise CorruptFileError(f"a producer snapshot of {len(data)} bytes; it has at least {HEADER.size}", path=path)
    version, stored, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptFileError(f"producer snapshot version {version}, only {VERSION} is known", path=path, position=0)
    computed = crc32c(data[CRC_END:])
    if stored != computed:
        what = f"CRC-32C mismatch in the producer snapshot: stored {stored:#010x}, computed {computed:#010x}"
        raise CorruptFileError(what, path=path, position=2)
    end = HEADER.size + count * ENTRY.size
    if count < 0 or end > len(data):
        room = (len(data) - HEADER.size) // ENTRY.size
        what = f"producer snapshot announces {count} entries, the file has room for {room}"
        raise CorruptFileError(what, path=path, position=CRC_END)
    return tuple(ProducerEntry(*fields) for fields in ENTRY.iter_unpack(data[HEADER.size : end]))


def encode(entries: Sequence[ProducerEntry]) -> bytes:
    """The snapshot of these entries, in their order."""
    body = struct.pack(">i", len(entries)) + b"".join(ENTRY.pack(*astuple(entry)) for entry in entries)
    return struct.pack(">hI", VERSION, crc32c(body)) + body

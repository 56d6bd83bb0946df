"""Producer snapshots, `<end offset>.snapshot`: a broker's state of each producer below an offset.

    0    i16   version, 1
    2    u32   CRC-32C of all bytes from 6 on
    6    i32   number of entries
    10         entries of 46 bytes

    an entry
    0    i64   producer id
    8    i16   producer epoch
    10   i32   last sequence       ┐ of the producer's last batch of data; NONE, NONE, 0 if
    14   i64   last offset         ├ it has only markers
    22   i32   offset delta        ┘
    26   i64   timestamp of its last batch or marker
    34   i32   coordinator epoch, NONE if no marker was seen
    38   i64   first offset of the open transaction, or NONE

All numbers are big-endian. A broker remembers up to five batches per producer; a snapshot keeps the last of them.
Entries have no particular order in Kafka (a hash map's); here they keep their order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import Bytes

VERSION = 1

HEADER = struct.Struct(">hIi")
CRC_END = 6


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """A snapshot's entry for one producer; the fields in the order of the file."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int


#: An entry in the file, and the same fields in memory.
_TYPES = (">i8", ">i2", ">i4", ">i8", ">i4", ">i8", ">i4", ">i8")
ENTRY = np.dtype([(field.name, type) for field, type in zip(fields(ProducerEntry), _TYPES, strict=True)])
PRODUCER_ROW = ENTRY.newbyteorder("=")
assert (HEADER.size, ENTRY.itemsize) == (10, 46)

#: PRODUCER_ROW[producers]
ProducerRows = npt.NDArray[np.void]


def decode_rows(data: Bytes, path: str | None = None) -> ProducerRows:
    """Return the entries of a snapshot as columns, in the order of the file.

    If producers are short-lived, a snapshot has 100,000s of them, too many for an object each. Like Kafka, ignore bytes
    after the announced entries, except in the checksum.

    Returns:
        PRODUCER_ROW[entries].

    Raises:
        CorruptFileError: Kafka would delete the snapshot and try an older one: too short, another version, another
            checksum, or more entries announced than there are.
    """
    data = memoryview(data).cast("B")
    if len(data) < HEADER.size:
        raise CorruptFileError(f"a producer snapshot of {len(data)} bytes; it has at least {HEADER.size}", path=path)
    version, stored, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptFileError(f"producer snapshot version {version}, only {VERSION} is known", path=path, position=0)
    computed = crc32c(data[CRC_END:])
    if stored != computed:
        what = f"CRC-32C mismatch in the producer snapshot: stored {stored:#010x}, computed {computed:#010x}"
        raise CorruptFileError(what, path=path, position=2)
    if count < 0 or HEADER.size + count * ENTRY.itemsize > len(data):
        room = (len(data) - HEADER.size) // ENTRY.itemsize
        what = f"producer snapshot announces {count} entries, the file has room for {room}"
        raise CorruptFileError(what, path=path, position=CRC_END)
    return np.frombuffer(data, ENTRY, count, HEADER.size).astype(PRODUCER_ROW)


def decode(data: Bytes, path: str | None = None) -> tuple[ProducerEntry, ...]:
    """Like `decode_rows`, but return an object per entry."""
    return tuple(ProducerEntry(*row) for row in decode_rows(data, path).tolist())


def rows_of(entries: Iterable[ProducerEntry]) -> ProducerRows:
    """Return these entries as columns, PRODUCER_ROW[entries]."""
    return np.array([astuple(entry) for entry in entries], PRODUCER_ROW)


def encode_rows(rows: ProducerRows) -> bytes:
    """Return the snapshot of these entries, in their order."""
    body = struct.pack(">i", rows.size) + rows.astype(ENTRY).tobytes()
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the snapshot of these entries, in their order."""
    return encode_rows(rows_of(entries))

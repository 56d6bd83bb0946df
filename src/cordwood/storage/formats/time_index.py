"""The time index of a segment, `.timeindex`: maps a timestamp to an offset from which to scan for it.

Entries of 12 bytes, big-endian; neither timestamps nor offsets decrease:

    0   i64   the largest timestamp of the segment so far
    8   i32   last offset of the batch that holds it, minus the segment's base offset

The last entry of a closed segment has its largest timestamp. Trailing zeros are preallocated room (see `entries`), with
one exception: the valid first entry (timestamp 0, base offset) is also all zeros. In a file with room for just one
entry, zeros are this entry; in a larger file they are taken for room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.common.types import NONE
from cordwood.fs.base import Bytes
from cordwood.storage.formats.entries import Int64Array, incomplete_entry, put_together, relative, take_apart

ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
assert ENTRY.itemsize == 12


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of a time index.

    Attributes:
        timestamps: int64[entries], milliseconds since the epoch.
        offsets: int64[entries], absolute.
        max_entries: number of entries in the file, with its zero tail; larger than `entries` after a crash, or in an
            active segment.
        rest: bytes after the last whole entry; only a damaged file has some.
    """

    base_offset: int
    timestamps: Int64Array
    offsets: Int64Array
    max_entries: int
    rest: bytes = b""

    @property
    def entries(self) -> int:
        """Number of entries, without trailing zeros."""
        return len(self.timestamps)

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (NONE, base offset) without entries."""
        return self._entry(self.entries)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Find the last entry at or below a timestamp.

        Returns:
            (timestamp, offset); (NONE, base offset) without such an entry.
        """
        return self._entry(int(np.searchsorted(self.timestamps, timestamp, side="right")))

    def _entry(self, count: int) -> tuple[int, int]:
        """Return the last of the first `count` entries."""
        if count == 0:
            return NONE, self.base_offset
        return int(self.timestamps[count - 1]), int(self.offsets[count - 1])


def decode(data: Bytes, base_offset: int) -> TimeIndex:
    """Decode any bytes as a time index; `faults` reports inconsistencies."""
    entries, max_entries, rest = take_apart(data, ENTRY)
    if max_entries == 1 and not len(entries):
        entries = np.zeros(1, ENTRY)
    offsets = entries["offset"].astype(np.int64) + np.int64(base_offset)
    return TimeIndex(base_offset, entries["timestamp"].astype(np.int64), offsets, max_entries, rest)


def encode(index: TimeIndex) -> bytes:
    """Encode an index, including its room for more entries and its rest."""
    entries = np.empty(index.entries, ENTRY)
    entries["timestamp"] = index.timestamps
    entries["offset"] = relative(index.offsets, index.base_offset)
    return put_together(entries, index.max_entries, index.rest)


def faults(index: TimeIndex) -> Iterator[CorruptFileError]:
    """Yield an error for each inconsistency that Kafka's writers would not produce, in order.

    Stricter than Kafka's own check, which compares the last entry with the first, and checks the length. Kafka's check
    also rejects a zero tail, so Kafka skips it for files that a crash left.
    """
    timestamps, offsets = index.timestamps, index.offsets
    bad = (offsets < index.base_offset) | (timestamps < 0)
    bad[1:] |= (timestamps[1:] < timestamps[:-1]) | (offsets[1:] < offsets[:-1])
    for entry in np.flatnonzero(bad).tolist():
        timestamp, offset = int(timestamps[entry]), int(offsets[entry])
        if offset < index.base_offset:
            what = f"offset {offset} is below the segment's base offset {index.base_offset}"
        elif timestamp < 0:
            what = f"timestamp {timestamp} is negative"
        elif timestamp < timestamps[entry - 1]:
            what = f"timestamp {timestamp} follows timestamp {timestamps[entry - 1]}"
        else:
            what = f"offset {offset} follows offset {offsets[entry - 1]}"
        what, position = f"time index entry {entry}: {what}", entry * ENTRY.itemsize
        yield CorruptFileError(what, kind=IndexProblem.ENTRY, position=position, offset=offset)
    if index.rest:
        yield incomplete_entry(index.rest, ENTRY, index.max_entries * ENTRY.itemsize)

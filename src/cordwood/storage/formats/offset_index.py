"""The offset index of a segment, `.index`: maps an offset to a position in the `.log` from which to scan for it.

Entries of 8 bytes, big-endian, offsets and positions both increasing:

    0   i32   last offset of a batch, minus the segment's base offset
    4   i32   position of that batch in the .log

Brokers before 4.0 wrote an entry per append: the largest offset of all its batches (0.9 and 0.10: its first offset),
and the position of the first batch. A look-up works with all of them. The first batch of a segment never has an entry,
so no entry of a broker is all zeros, and trailing zeros are preallocated room (see `entries`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.fs.base import Bytes
from cordwood.storage.formats.entries import Int64Array, incomplete_entry, put_together, relative, take_apart

ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
assert ENTRY.itemsize == 8


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of an offset index.

    Attributes:
        offsets: int64[entries], absolute.
        positions: int64[entries], bytes in the .log.
        max_entries: number of entries in the file, with its zero tail; larger than `entries` after a crash, or in an
            active segment.
        rest: bytes after the last whole entry; only a damaged file has some.
    """

    base_offset: int
    offsets: Int64Array
    positions: Int64Array
    max_entries: int
    rest: bytes = b""

    @property
    def entries(self) -> int:
        """Number of entries, without trailing zeros."""
        return len(self.offsets)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, or the base offset without entries."""
        return int(self.offsets[-1]) if self.entries else self.base_offset

    def lookup(self, target: int) -> tuple[int, int]:
        """Find the last entry at or below an offset: the start of a scan for the batch that holds it.

        Returns:
            (offset, position); (base offset, 0) without such an entry.
        """
        count = int(np.searchsorted(self.offsets, target, side="right"))
        if count == 0:
            return self.base_offset, 0
        return int(self.offsets[count - 1]), int(self.positions[count - 1])


def decode(data: Bytes, base_offset: int) -> OffsetIndex:
    """Decode any bytes as an offset index; `faults` reports inconsistencies."""
    entries, max_entries, rest = take_apart(data, ENTRY)
    offsets = entries["offset"].astype(np.int64) + np.int64(base_offset)
    return OffsetIndex(base_offset, offsets, entries["position"].astype(np.int64), max_entries, rest)


def encode(index: OffsetIndex) -> bytes:
    """Encode an index, including its room for more entries and its rest."""
    entries = np.empty(index.entries, ENTRY)
    entries["offset"] = relative(index.offsets, index.base_offset)
    entries["position"] = index.positions
    return put_together(entries, index.max_entries, index.rest)


def faults(index: OffsetIndex) -> Iterator[CorruptFileError]:
    """Yield an error for each inconsistency that Kafka's writers would not produce, in order.

    Stricter than Kafka's own check, which covers only the last offset and the length.
    """
    offsets, positions = index.offsets, index.positions
    bad = (offsets < index.base_offset) | (positions < 0)
    bad[1:] |= (offsets[1:] <= offsets[:-1]) | (positions[1:] <= positions[:-1])
    for entry in np.flatnonzero(bad).tolist():
        offset, position = int(offsets[entry]), int(positions[entry])
        if offset < index.base_offset:
            what = f"offset {offset} is below the segment's base offset {index.base_offset}"
        elif position < 0:
            what = f"position {position} is negative"
        elif offset <= offsets[entry - 1]:
            what = f"offset {offset} follows offset {offsets[entry - 1]}"
        else:
            what = f"position {position} follows position {positions[entry - 1]}"
        what, position = f"index entry {entry}: {what}", entry * ENTRY.itemsize
        yield CorruptFileError(what, kind=IndexProblem.ENTRY, position=position, offset=offset)
    if index.rest:
        yield incomplete_entry(index.rest, ENTRY, index.max_entries * ENTRY.itemsize)

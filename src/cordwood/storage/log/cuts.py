"""Cut a segment into ranges of bytes: between two batches, at positions in its offset index.

    position of an entry         the cut
             ▼                      ▼
    … │ batch, last offset 41 │ batch 42 to 47 │ …

An index entry points to a batch, and the cut is after that batch. Its last offset separates the offsets on both sides.
A cut before the batch would need its first offset, which the header of a wrapper (magic 0 or 1) does not hold. An entry
is used only if it points to a batch with the offset of the entry.

A known cut is reused only while the same batch is after it. If a cleaned file has replaced the file since then, another
batch may start at the same position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.fs.base import ReadableFile
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, HEADER, MIN_ENTRY_BYTES
from cordwood.storage.formats.offset_index import OffsetIndex

#: Bytes to read: enough for any header, and for a control batch, which the scan reads whole.
_HEADER_READ_BYTES = 4096 + HEADER.size
#: Index entries to try. Entries of brokers before 4.0 have the last offset of a whole append but the position of its
#: first batch, so the batch that ends at or above an offset may be some entries further on.
_ENTRIES_TRIED = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary between two batches of a segment, or the segment's start.

    Attributes:
        segment: base offset of the segment.
        position: position in its `.log` of the batch after the cut.
        offset: records before the cut have smaller offsets, records after it this one or larger ones.
        following: base and last offset of the batch after the cut; None if the file ended there, or it was not read.
    """

    segment: int
    position: int
    offset: int
    following: tuple[int, int] | None = None

    def still_holds(self, file: ReadableFile) -> bool:
        """Return whether the file still has the same batch after the cut as when the cut was found."""
        return self.position == 0 or (self.following is not None and _offsets_at(file, self.position) == self.following)


def cut_before(segment: int, batch: np.void) -> Cut:
    """Return the cut before a batch (a BATCH_ROW) whose records all have offsets from its base offset on."""
    base_offset, last_offset = int(batch["base_offset"]), int(batch["last_offset"])
    # A wrapper's header lacks its first offset; it is only certain that later batches are above its last offset.
    offset = base_offset if base_offset >= 0 else last_offset
    return Cut(segment, int(batch["position"]), offset, (base_offset, last_offset))


def last_cut(file: ReadableFile, index: OffsetIndex, offset: int) -> Cut:
    """Return the last known cut before all records from `offset` on; the segment's start if the index has none."""
    entry = int(np.searchsorted(index.offsets, offset - 1, side="right")) - 1
    for at in range(entry, max(entry - _ENTRIES_TRIED, -1), -1):
        if (cut := _cut_behind(file, index, at)) is not None:
            return cut
    return Cut(index.base_offset, 0, index.base_offset)


def first_cut(file: ReadableFile, index: OffsetIndex, offset: int) -> Cut | None:
    """Return the first cut after all records below `offset`; None if the index has none."""
    entry = int(np.searchsorted(index.offsets, offset - 1, side="left"))
    for at in range(entry, min(entry + _ENTRIES_TRIED, index.entries)):
        cut = _cut_behind(file, index, at)
        if cut is not None and cut.offset >= offset:
            return cut
    return None


def cuts_between(file: ReadableFile, index: OffsetIndex, start: int, end: int, every_bytes: int) -> Iterator[Cut]:
    """Yield cuts that divide the positions [start, end) into parts of about `every_bytes`, if the index has them."""
    parts = max(1, round((end - start) / every_bytes))
    offset = index.base_offset
    for wanted in (start + (end - start) * part // parts for part in range(1, parts)):
        entry = int(np.searchsorted(index.positions, wanted, side="left"))
        cut = _cut_behind(file, index, entry) if entry < index.entries else None
        if cut is not None and start < cut.position < end and cut.offset > offset:
            offset = cut.offset
            yield cut


def _cut_behind(file: ReadableFile, index: OffsetIndex, entry: int) -> Cut | None:
    """Return the cut after the batch of an index entry; None if no batch fits the entry."""
    cut = cut_behind(file, index.base_offset, int(index.positions[entry]))
    return cut if cut is not None and index.base_offset < cut.offset <= index.offsets[entry] + 1 else None


def cut_behind(file: ReadableFile, segment: int, position: int) -> Cut | None:
    """Return the cut after the batch at a position; None if there is no batch, or the next one does not end higher."""
    batch = header_at(file, position)
    if batch is None:
        return None
    end = position + int(batch["size_bytes"])
    following = _offsets_at(file, end)
    if following is not None and following[1] <= batch["last_offset"]:
        return None
    return Cut(segment, end, int(batch["last_offset"]) + 1, following)


def _offsets_at(file: ReadableFile, position: int) -> tuple[int, int] | None:
    """Return base and last offset of the batch at a position; None if no batch starts there."""
    batch = header_at(file, position)
    return None if batch is None else (int(batch["base_offset"]), int(batch["last_offset"]))


def header_at(file: ReadableFile, position: int) -> np.void | None:
    """Return the header of the whole batch at a position, as a BATCH_ROW; None if no batch starts there."""
    left = file.size() - position
    if position < 0 or left < MIN_ENTRY_BYTES[0]:
        return None
    data = np.frombuffer(file.read(position, min(left, _HEADER_READ_BYTES)), np.uint8)
    rows = np.empty(1, BATCH_ROW)
    count, _, _ = scan.scan_batches(data.ctypes.data, data.size, left, position, False, rows)
    return rows[0] if count else None

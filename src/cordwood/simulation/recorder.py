"""Records when each record of a partition was superseded and when it was removed.

Each record is a row of an array; its offset is the index. Whenever the segments change, the recorder reads the new ones
to find the remaining records; it contains none of the cleaner's rules.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from cordwood.live.log import Log
from cordwood.live.segment import LogSegment
from cordwood.record.columns import decode
from cordwood.simulation.batches import Written
from cordwood.simulation.sizing.result import NEVER, Stay

Int64Array = npt.NDArray[np.int64]

#: A record: when it was written, superseded or aborted, and removed; its size in bytes; and its kind.
_ROW = np.dtype(
    [
        ("key", np.int64),
        ("written_ms", np.int64),
        ("useless_ms", np.int64),
        ("gone_ms", np.int64),
        ("size_bytes", np.int64),
        ("is_tombstone", np.bool_),
        ("is_aborted", np.bool_),
        ("is_deleted", np.bool_),
    ]
)
_NEW = np.array((0, 0, NEVER, NEVER, 0, False, False, False), _ROW)
_NO_OFFSET = -1


class RecordState(IntEnum):
    """The present state of a record."""

    GONE = 0  #: removed, or never written
    VALUE = 1  #: the last of its key
    TOMBSTONE = 2  #: the last of its key
    SUPERSEDED = 3  #: its key has a newer record
    ABORTED = 4  #: its transaction was aborted
    MARKER = 5


class Recorder:
    """Tracks the records of one log.

    Attributes:
        appended_bytes, appended_records: totals so far; markers do not count as records.
        deleted_by_time, deleted_by_size: segments that retention deleted as too old, and to limit the size.
        first_deleted_ms: time of the first deletion, or None.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.first_deleted_ms: int | None
        self.count_anew()
        #: Records appended since the last `look`.
        self._appended: list[Written] = []
        self._rows = np.full(1 << 12, _NEW)
        #: int8[rows], the state of each row; a separate array because every `look` reads it.
        self._states = np.zeros(self._rows.size, np.int8)
        #: The offset of the last record of each key.
        self._latest = np.full(1 << 10, _NO_OFFSET)
        self._bytes = np.zeros(len(RecordState), np.int64)
        self._segments, self._start = log.log_segments, log.log_start_offset
        #: The end of the log now, and at the last `look`.
        self._end = self._seen_end = log.log_end_offset

    def count_anew(self) -> None:
        """Reset the counts of appended and deleted data."""
        self.appended_bytes = self.appended_records = 0
        self.deleted_bytes = self.deleted_by_time = self.deleted_by_size = 0
        self.first_deleted_ms = None

    def bytes_of(self, state: RecordState) -> int:
        """Return the bytes of the records that are in this state now."""
        return int(self._bytes[state])

    # ---- appends -----------------------------------------------------------------------------------------------------

    def written(self, part: Written) -> None:
        """Note appended records; call `look` before the log changes again."""
        self._appended.append(part)
        self._end = part.next_offset
        self.appended_bytes += len(part.data)
        self.appended_records += part.records.count

    def _take(self, now_ms: int) -> None:
        """Add a row for each appended record."""
        parts, self._appended = self._appended, []
        offsets = np.concatenate([np.arange(one.first_offset, one.first_offset + one.records.count) for one in parts])
        keys = np.concatenate([one.records.keys for one in parts])
        tombstones = np.concatenate([one.records.tombstones for one in parts])
        aborted = np.repeat([one.aborted for one in parts], [one.records.count for one in parts])
        self._grow(self._end, int(keys.max(initial=0)))
        rows = self._rows
        rows["key"][offsets], rows["is_tombstone"][offsets], rows["is_aborted"][offsets] = keys, tombstones, aborted
        rows["written_ms"][offsets] = now_ms
        rows["size_bytes"][offsets] = np.concatenate([one.records.sizes for one in parts])
        self._move(offsets[~tombstones], RecordState.VALUE)
        self._move(offsets[tombstones], RecordState.TOMBSTONE)
        self._move(np.array([one.next_offset - 1 for one in parts if one.has_marker], np.int64), RecordState.MARKER)
        self._become_useless(offsets[aborted], RecordState.ABORTED, now_ms)
        self._supersede(offsets[~aborted], keys[~aborted], now_ms)

    def _supersede(self, offsets: Int64Array, keys: Int64Array, now_ms: int) -> None:
        """Mark the previous record of each key as superseded."""
        if not keys.size:
            return
        order = np.argsort(keys, kind="stable")
        keys, offsets = keys[order], offsets[order]
        is_first = np.append(True, keys[1:] != keys[:-1])
        before = np.where(is_first, self._latest[keys], np.append(0, offsets[:-1]))
        before = before[before != _NO_OFFSET]
        self._become_useless(before[self._states[before] != RecordState.GONE], RecordState.SUPERSEDED, now_ms)
        is_last = np.append(is_first[1:], True)
        self._latest[keys[is_last]] = offsets[is_last]

    def _become_useless(self, offsets: Int64Array, state: RecordState, now_ms: int) -> None:
        self._rows["useless_ms"][offsets] = now_ms
        self._move(offsets, state)

    def _move(self, offsets: Int64Array, state: RecordState) -> None:
        sizes = self._rows["size_bytes"][offsets]
        self._bytes -= np.bincount(self._states[offsets], sizes, len(RecordState)).astype(np.int64)
        self._bytes[state] += sizes.sum()
        self._states[offsets] = state

    def _grow(self, rows: int, key: int) -> None:
        while self._rows.size < rows:
            self._rows = np.concatenate([self._rows, np.full(self._rows.size, _NEW)])
            self._states = np.concatenate([self._states, np.zeros(self._states.size, np.int8)])
        while self._latest.size <= key:
            self._latest = np.concatenate([self._latest, np.full(self._latest.size, _NO_OFFSET)])

    # ---- removals ----------------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> int:
        """Find the records that were removed since the last call.

        Returns:
            the bytes of the segments that a clean has written since then.
        """
        if self._appended:
            self._take(now_ms)
        old, new, start = self._segments, self.log.log_segments, self.log.log_start_offset
        if new is old and start == self._start:
            self._seen_end = self._end
            return 0
        ends = [*(segment.base_offset for segment in old[1:]), self._end]
        known, left = set(old), set(new)
        gone = [(segment, end) for segment, end in zip(old, ends, strict=True) if segment not in left]
        written = [one for one in new if one not in known and one.base_offset < self._seen_end]
        self._count_deleted([segment for segment, end in gone if end <= start], now_ms)
        was_there = np.concatenate([np.arange(0), *(self._there(one.base_offset, end) for one, end in gone)])
        is_there = np.concatenate([np.arange(0), *map(_offsets, written)])
        offsets = np.setdiff1d(was_there, is_there, assume_unique=True)
        rows = self._rows
        rows["gone_ms"][offsets] = now_ms
        rows["is_deleted"][offsets] = offsets < start
        self._move(offsets, RecordState.GONE)
        self._segments, self._start, self._seen_end = new, start, self._end
        return sum(segment.size_bytes for segment in written)

    def _there(self, start: int, end: int) -> Int64Array:
        """Return the offsets in a range that hold a record, as of the last `look`."""
        return start + np.flatnonzero(self._states[start:end] != RecordState.GONE)

    def _count_deleted(self, segments: list[LogSegment], now_ms: int) -> None:
        config = self.log.config
        for segment in segments:
            self.deleted_bytes += segment.size_bytes
            age_ms = now_ms - segment.largest_timestamp_so_far[0]
            if 0 <= config.retention_ms < age_ms:
                self.deleted_by_time += 1
            else:
                self.deleted_by_size += 1
            if self.first_deleted_ms is None:
                self.first_deleted_ms = now_ms

    def distinct_keys(self, start: int, end: int) -> int:
        """Count the distinct keys of the records between two offsets, as of the last `look`."""
        return int(np.unique(self._rows["key"][self._there(start, end)]).size)

    # ---- how long records stay ---------------------------------------------------------------------------------------

    def superseded(self, now_ms: int, factor: float = 1) -> Stay | None:
        """Measure how long a record stays after a newer record of its key."""
        rows = self._rows[: self._end]
        return self._stay((rows["useless_ms"] != NEVER) & ~rows["is_aborted"], "useless_ms", now_ms, factor)

    def tombstones(self, now_ms: int, factor: float = 1) -> Stay | None:
        """Measure how long a tombstone stays if no newer record supersedes it."""
        rows = self._rows[: self._end]
        return self._stay(rows["is_tombstone"] & ~rows["is_aborted"], "written_ms", now_ms, factor, lost="useless_ms")

    def aborted(self, now_ms: int, factor: float = 1) -> Stay | None:
        """Measure how long a record of an aborted transaction stays after the abort."""
        return self._stay(self._rows["is_aborted"][: self._end], "useless_ms", now_ms, factor)

    def deleted(self, now_ms: int, factor: float = 1) -> Stay | None:
        """Measure the age at which retention deletes records, over all deleted records."""
        return self._stay(self._rows["is_deleted"][: self._end], "written_ms", now_ms, factor)

    def _stay(
        self, mask: npt.NDArray[np.bool_], since: str, now_ms: int, factor: float, *, lost: str | None = None
    ) -> Stay | None:
        chosen = self._rows[: self._end][mask]
        return Stay.of(chosen[since], chosen["gone_ms"], now_ms, factor, lost_ms=None if lost is None else chosen[lost])


def _offsets(segment: LogSegment) -> Int64Array:
    """Read the offsets of a segment's records."""
    found = [columns.rows["offset"] for window in segment.windows() for columns in decode(window)]
    return np.concatenate([np.arange(0), *found])

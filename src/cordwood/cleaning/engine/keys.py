"""Collect the keys of the dirty section in a table.

With Kafka's offset map, and for damaged logs whose offsets do not ascend, the table is the result of pass 1. If little
is dirty, a scan follows that looks up all records in the table, see `engine.scan`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.readahead import (
    TrackedWindow,
    decode_batches,
    read_ahead,
    reading_threads,
    tracked_windows,
)
from cordwood.cleaning.rules.key_table import BoolArray, KeyTable, NewestOffsets, UInt64Array
from cordwood.cleaning.rules.latest import LatestOffsets
from cordwood.cleaning.rules.offset_map import OffsetMap, keys_max
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.types import NONE
from cordwood.kernels.latest import choose_keyed
from cordwood.kernels.layout import BatchRows, is_control
from cordwood.record.columns import RecordColumns
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import compute_crcs

#: Records, a mask of those whose key counts, and the hashes of these keys.
HashedRecords: TypeAlias = tuple[RecordColumns, BoolArray, UInt64Array]


@dataclass(frozen=True, slots=True)
class DirtySection:
    """The range in which keys are read.

    Attributes:
        segments: segments that overlap the range.
        start: keys below this offset do not count.
        end: base offset of the segment after the range.
        tracker: tracker of the aborted transactions that reach into the range.
        next_start: base offset of a segment at which the tracker's state is recorded.
    """

    segments: tuple[Segment, ...]
    start: int
    end: int
    tracker: AbortTracker
    next_start: int | None = None

    @property
    def latest_offset(self) -> int:
        """Last offset of the range; NONE if nothing is dirty."""
        return self.end - 1 if self.segments else NONE


#: For a scan that looks up records: no record supersedes others.
NOTHING_DIRTY = DirtySection((), 0, 0, AbortTracker())


@dataclass(frozen=True, slots=True)
class DirtyKeys:
    """The result of pass 1 for pass 2.

    Attributes:
        newest: the newest offsets of keys.
        next_tracker: tracker of transactions where the next groups begin; None if pass 1 did not reach them.
        size_bytes: peak memory of the keys.
    """

    newest: NewestOffsets
    next_tracker: AbortTracker | None = None
    size_bytes: int = 0

    @property
    def end_offset(self) -> int:
        """The offset after the last one whose key was read: the new first dirty offset."""
        return self.newest.latest_offset + 1


def empty_table(settings: CleanSettings, hash_secret: bytes, offsets: int | None = None) -> KeyTable:
    """Return the empty table that a clean with these settings fills.

    Args:
        hash_secret: see `LatestOffsets`.
        offsets: number of offsets in the range; None if unknown.
    """
    if settings.offset_map_slots is None:
        # Each key has a record, and each record has its own offset.
        return LatestOffsets(hash_secret, settings.memory, keys_max=offsets)
    limit = keys_max(settings.offset_map_slots, settings.offset_map_load_factor)
    return OffsetMap(settings.offset_map_slots, limit, settings.memory)


def collect_keys(dirty: DirtySection, table: KeyTable) -> DirtyKeys:
    """Enter the keys of a range into an empty table.

    A table that fills up covers the range up to its last key, or up to the last batch entered in full, if later.
    """
    next_tracker: AbortTracker | None = None
    segments, start = dirty.segments, dirty.start

    def windows() -> Iterator[TrackedWindow]:
        nonlocal next_tracker
        for segment in segments:
            if segment.base_offset == dirty.next_start and segment.base_offset > start:
                next_tracker = copy.deepcopy(dirty.tracker)
            yield from tracked_windows(segment, start, dirty.tracker)

    def hashed(window: TrackedWindow) -> list[HashedRecords]:
        """Return the records of a window, a mask of those whose key counts, and the hashes of these keys."""
        compute_crcs(window.window)
        wanted = _with_keys(window.window.batches, window.discard, start)
        found = []
        for columns in decode_batches(window.segment, window.window, wanted):
            keyed = _keyed(columns, start)
            found.append((columns, keyed, table.hashes(columns, keyed)))
        return found

    segment: Segment | None = None
    with reading_threads(segments) as threads:
        for window, found in read_ahead(threads, windows(), hashed):
            if segment is not None and window.segment is not segment:
                # Offsets without a record count as read.
                table.latest_offset = window.segment.base_offset - 1
            segment = window.segment
            is_full = not _enter(table, window.window.batches, found, start)
            del window, found  # free large ones before reading more
            if is_full:
                return DirtyKeys(table, size_bytes=table.used_bytes)
    if segments:
        table.latest_offset = dirty.latest_offset
    return DirtyKeys(table, next_tracker, table.used_bytes)


def _enter(table: KeyTable, batches: BatchRows, found: Sequence[HashedRecords], start: int) -> bool:
    """Enter the keys of some batches. Return False if the table is full; see `collect_keys`."""
    for columns, keyed, hashes in found:
        done = table.put(columns, keyed, hashes)
        if done < columns.rows.size:
            position = columns.batches["position"][columns.rows["batch"][done]]
            _count_as_seen(table, batches[batches["position"] < position], start)
            return False
    _count_as_seen(table, batches, start)
    return True


def _count_as_seen(table: KeyTable, batches: BatchRows, start: int) -> None:
    """Extend `latest_offset` over batches whose keys are all in the table."""
    if batches.size and batches["last_offset"][-1] >= start:
        table.latest_offset = max(table.latest_offset, int(batches["last_offset"][-1]))


def _with_keys(batches: BatchRows, aborted: BoolArray, start: int) -> BoolArray:
    """bool[batches]: whether a batch may hold the newest offset of a key."""
    return np.asarray(~(aborted | is_control(batches)) & (batches["last_offset"] >= start))


def _keyed(columns: RecordColumns, start: int) -> BoolArray:
    """bool[records]: whether a record has a key and is at or above the offset."""
    keyed = np.empty(columns.rows.size, np.bool_)
    choose_keyed(columns.rows, start, keyed)
    return keyed

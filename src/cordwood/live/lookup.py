"""Finds a record by its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordwood.common.types import NONE
from cordwood.live.segment import BatchPlace, LogSegment
from cordwood.live.validation import read_batches, read_records
from cordwood.record.record import Record


@dataclass(frozen=True, slots=True)
class RecordAtTime:
    """The result of a search by time.

    Attributes:
        timestamp: NONE if only an offset was requested.
        leader_epoch: None if it is unknown.
    """

    offset: int
    timestamp: int = NONE
    leader_epoch: int | None = None


#: Special timestamps of `fetch_offset_by_timestamp`.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)


def newest_record(segments: Sequence[LogSegment]) -> RecordAtTime | None:
    """Return the first record with the largest timestamp."""
    segment = max(segments, key=lambda one: one.largest_timestamp_so_far[0])
    timestamp, offset = segment.largest_timestamp_so_far
    for place in segment.places(segment.offset_index.lookup(offset)):
        if place.max_timestamp == timestamp:
            return _first_in(segment, place, lambda record: record.timestamp == timestamp)
    return None


def first_record_since(segments: Sequence[LogSegment], timestamp: int, start_offset: int) -> RecordAtTime | None:
    """Return the first record at an offset or above that is not older than a timestamp."""
    segment = next((one for one in segments if one.largest_timestamp >= timestamp), None)
    if segment is None:
        return None
    position = segment.offset_index.lookup(max(segment.time_index.lookup(timestamp), start_offset))
    for place in segment.places(position):
        if place.max_timestamp >= timestamp:
            found = _first_in(
                segment, place, lambda record: record.timestamp >= timestamp and record.offset >= start_offset
            )
            if found is not None:
                return found
    return None


def _first_in(segment: LogSegment, place: BatchPlace, is_wanted: Callable[[Record], bool]) -> RecordAtTime | None:
    entry = segment.read_bytes(place.position, place.size_bytes)
    batch = next(read_batches(entry))
    for record in read_records(entry, batch):
        if is_wanted(record):
            epoch = None if batch.leader_epoch < 0 else batch.leader_epoch
            return RecordAtTime(record.offset, record.timestamp, epoch)
    return None

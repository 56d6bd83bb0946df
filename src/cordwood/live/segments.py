"""The segments of a live log, in order of their base offsets; finds a record in them by its time.

Source: Kafka LogSegments, LogSegment.findOffsetByTimestamp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from cordwood.common.errors import IllegalArgumentError
from cordwood.common.types import NONE
from cordwood.live.segment import BatchPlace, LogSegment
from cordwood.live.validation import read_batches, read_records
from cordwood.record.record import Record

_BASE = attrgetter("base_offset")


class LogSegments:
    """A sorted collection. Readers need no lock: they see the state before or after a change, never in between."""

    def __init__(self) -> None:
        #: Ascending. An append extends this list; any other change creates a new list.
        self._segments: list[LogSegment] = []
        #: The tuple of all segments, and the list from which it was made.
        self._all: tuple[list[LogSegment], tuple[LogSegment, ...]] = self._segments, ()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def all(self) -> tuple[LogSegment, ...]:
        """All segments, ascending: the same tuple until there is a change."""
        segments, known = self._segments, self._all
        if known[0] is not segments or len(known[1]) != len(segments):
            self._all = known = segments, tuple(segments)
        return known[1]

    @property
    def active(self) -> LogSegment:
        """The last segment, which gets the appends."""
        return self._segments[-1]

    @property
    def first(self) -> LogSegment:
        """The segment with the smallest base offset."""
        return self._segments[0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self.all)

    def replace(self, added: Iterable[LogSegment] = (), removed: Iterable[int] = ()) -> None:
        """Add segments and remove base offsets, in one step for readers."""
        added, removed = tuple(added), tuple(removed)
        segments = self._segments
        if len(added) == 1 and not removed and (not segments or segments[-1].base_offset < added[0].base_offset):
            # A roll, or the next segment of a load: its cost must not grow with the number of segments.
            segments.append(added[0])
            return
        kept = {segment.base_offset: segment for segment in segments}
        for base in removed:
            kept.pop(base, None)
        kept |= {segment.base_offset: segment for segment in added}
        self._segments = sorted(kept.values(), key=_BASE)

    def get(self, base_offset: int) -> LogSegment | None:
        """Return the segment with exactly this base offset."""
        segment = self.floor(base_offset)
        return segment if segment is not None and segment.base_offset == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment with the largest base offset at or below an offset."""
        segments = self._segments
        at = bisect_right(segments, offset, key=_BASE)
        return segments[at - 1] if at else None

    def higher(self, offset: int) -> LogSegment | None:
        """Return the segment with the smallest base offset above an offset."""
        segments = self._segments
        at = bisect_right(segments, offset, key=_BASE)
        return segments[at] if at < len(segments) else None

    def values(self, start: int, end: int) -> tuple[LogSegment, ...]:
        """Return the segments that may hold offsets [start, end), beginning with the segment at or below `start`."""
        if end < start:
            raise IllegalArgumentError(f"Invalid log segment range: requested segments in the range [{start}, {end})")
        if start == end:
            return ()
        segments = self._segments
        first = max(0, bisect_right(segments, start, key=_BASE) - 1)
        return tuple(segments[first : bisect_left(segments, end, key=_BASE)])

    def non_active_from(self, offset: int) -> tuple[LogSegment, ...]:
        """Return the segments from the segment that holds an offset on, without the active segment."""
        active = self.active.base_offset
        return () if offset > active else self.values(offset, active)


# ---- records by time -------------------------------------------------------------------------------------------------


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

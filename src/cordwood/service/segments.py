"""The segments of a live log, in order of their base offsets.

Source: Kafka LogSegments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

from cordwood.errors import IllegalArgumentError
from cordwood.service.segment import LogSegment

_BASE = attrgetter("base_offset")


class LogSegments:
    """A sorted collection. Readers see it as it was before or after a change, without a lock."""

    def __init__(self) -> None:
        #: Ascending. It grows at its end; any other change makes a new list.
        self._segments: list[LogSegment] = []
        #: The list that it is of, and its segments.
        self._all: tuple[list[LogSegment], tuple[LogSegment, ...]] = self._segments, ()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def all(self) -> tuple[LogSegment, ...]:
        """All of them, ascending: the same tuple until there is a change."""
        segments, known = self._segments, self._all
        if known[0] is not segments or len(known[1]) != len(segments):
            self._all = known = segments, tuple(segments)
        return known[1]

    @property
    def active(self) -> LogSegment:
        """The last one, which is appended to."""
        return self._segments[-1]

    @property
    def first(self) -> LogSegment:
        """The one with the smallest base offset."""
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
            # A roll, or the next segment of a load: it takes as long with many segments as with few.
            segments.append(added[0])
            return
        kept = {segment.base_offset: segment for segment in segments}
        for base in removed:
            kept.pop(base, None)
        kept |= {segment.base_offset: segment for segment in added}
        self._segments = sorted(kept.values(), key=_BASE)

    def get(self, base_offset: int) -> LogSegment | None:
        """The segment with exactly this base offset."""
        segment = self.floor(base_offset)
        return segment if segment is not None and segment.base_offset == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """The segment with the largest base offset at or below an offset."""
        segments = self._segments
        at = bisect_right(segments, offset, key=_BASE)
        return segments[at - 1] if at else None

    def higher(self, offset: int) -> LogSegment | None:
        """The segment with the smallest base offset above an offset."""
        segments = self._segments
        at = bisect_right(segments, offset, key=_BASE)
        return segments[at] if at < len(segments) else None

    def values(self, start: int, end: int) -> tuple[LogSegment, ...]:
        """From the segment that holds `start`, or would, up to the first one whose base is at `end` or above."""
        if end < start:
            raise IllegalArgumentError(f"Invalid log segment range: requested segments in the range [{start}, {end})")
        if start == end:
            return ()
        segments = self._segments
        first = max(0, bisect_right(segments, start, key=_BASE) - 1)
        return tuple(segments[first : bisect_left(segments, end, key=_BASE)])

    def non_active_from(self, offset: int) -> tuple[LogSegment, ...]:
        """From the segment that holds an offset up to the active one, which is left out."""
        active = self.active.base_offset
        return () if offset > active else self.values(offset, active)

"""The segments of a live log, in order of their base offsets.

Source: Kafka LogSegments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from cordwood.errors import IllegalArgumentError
from cordwood.service.segment import LogSegment

_Sorted = tuple[tuple[int, ...], tuple[LogSegment, ...]]


class LogSegments:
    """A sorted collection. Readers see it as it was before or after a change, without a lock."""

    def __init__(self) -> None:
        self._sorted: _Sorted = ((), ())

    def __len__(self) -> int:
        return len(self._sorted[0])

    @property
    def all(self) -> tuple[LogSegment, ...]:
        """All of them, ascending."""
        return self._sorted[1]

    @property
    def active(self) -> LogSegment:
        """The last one, which is appended to."""
        return self._sorted[1][-1]

    @property
    def first(self) -> LogSegment:
        """The one with the smallest base offset."""
        return self._sorted[1][0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._sorted[1])

    def replace(self, added: Iterable[LogSegment] = (), removed: Iterable[int] = ()) -> None:
        """Add segments and remove base offsets, in one step for readers."""
        added, removed = tuple(added), tuple(removed)
        bases, segments = self._sorted
        if len(added) == 1 and not removed and added[0].base_offset > (bases[-1] if bases else -1):
            # A roll, or the next segment of a load: two tuples are copied, nothing is done for each segment.
            self._sorted = (*bases, added[0].base_offset), (*segments, *added)
            return
        kept = dict(zip(bases, segments, strict=True))
        for base in removed:
            kept.pop(base, None)
        kept |= {segment.base_offset: segment for segment in added}
        bases = tuple(sorted(kept))
        self._sorted = bases, tuple(kept[base] for base in bases)

    def get(self, base_offset: int) -> LogSegment | None:
        """The segment with exactly this base offset."""
        bases, segments = self._sorted
        at = bisect_left(bases, base_offset)
        return segments[at] if at < len(bases) and bases[at] == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """The segment with the largest base offset at or below an offset."""
        bases, segments = self._sorted
        at = bisect_right(bases, offset)
        return segments[at - 1] if at else None

    def higher(self, offset: int) -> LogSegment | None:
        """The segment with the smallest base offset above an offset."""
        bases, segments = self._sorted
        at = bisect_right(bases, offset)
        return segments[at] if at < len(bases) else None

    def values(self, start: int, end: int) -> tuple[LogSegment, ...]:
        """From the segment that holds `start`, or would, up to the first one whose base is at `end` or above.

        Raises:
            IllegalArgumentError: `end` is below `start`.
        """
        if end < start:
            raise IllegalArgumentError(f"Invalid log segment range: requested segments in the range [{start}, {end})")
        if start == end:
            return ()
        bases, segments = self._sorted
        return segments[max(0, bisect_right(bases, start) - 1) : bisect_left(bases, end)]

    def non_active_from(self, offset: int) -> tuple[LogSegment, ...]:
        """From the segment that holds an offset up to the active one, which is left out."""
        active = self.active.base_offset
        return () if offset > active else self.values(offset, active)

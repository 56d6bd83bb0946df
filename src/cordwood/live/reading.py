"""What readers of a live log may read, and how they give way to appends.

The offsets are log start offset, high watermark and first unstable offset. Readers take no lock: the offsets are one
value, which is replaced as a whole. Writers of the log also hold the log's lock. A reader makes only one change: if the
high watermark is inside a batch, the reader looks up the batch and lowers the high watermark to its first offset,
unless another thread has set a new one meanwhile.

Python runs one thread of a process at a time. A thread that appends releases the interpreter at each write. To get it
back it competes with all readers, each of which may keep it for 5 ms (`sys.getswitchinterval`), and the longest waiter
is not preferred: beside eight busy readers an append took up to a second. So during an append a reader sleeps before
its next batch, in proportion to its CPU time since its last sleep and to the number of sleeping readers. One reader
uses about a quarter of the time, and eight not much more. There is one interpreter per process, so the variables of
turns are global.

Source: Kafka UnifiedLog.fetchHighWatermarkMetadata, UnifiedLog.fetchLastStableOffsetMetadata.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from cordwood.common.errors import IllegalArgumentError
from cordwood.live.local_log import LocalLog, ReadEnd
from cordwood.live.segment import LogSegment


class Marks(NamedTuple):
    """The offsets at one moment.

    Attributes:
        high_watermark: all in-sync replicas have the records below this offset.
        first_unstable_offset: start of the earliest transaction that is open, or whose marker is not replicated.
        placed: start of the high watermark's batch, and the segments in which it was found; None: not looked up yet.
    """

    log_start_offset: int
    high_watermark: int
    first_unstable_offset: int | None = None
    placed: tuple[ReadEnd, tuple[LogSegment, ...]] | None = None

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset are decided; a reader of committed records stops here."""
        unstable = self.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)


class Watermarks:
    """The offsets of one log."""

    def __init__(self, local: LocalLog, log_start_offset: int) -> None:
        self.now = Marks(log_start_offset, log_start_offset)
        self._local = local
        #: Held while `now` is replaced.
        self._lock = threading.Lock()

    def set_log_start_offset(self, offset: int) -> None:
        """Move the log start offset."""
        with self._lock:
            self.now = self.now._replace(log_start_offset=offset)

    def set_first_unstable_offset(self, offset: int | None) -> None:
        """Move the first unstable offset."""
        if offset != self.now.first_unstable_offset:
            with self._lock:
                self.now = self.now._replace(first_unstable_offset=offset)

    def set_high_watermark(self, offset: int, *, is_placed: bool = True) -> None:
        """Move the high watermark.

        Args:
            is_placed: a high watermark at the log end is the start of the next batch, and needs no lookup.
        """
        if offset < 0:
            raise IllegalArgumentError("High watermark offset should be non-negative")
        end = self._local.end
        placed = (end, self._local.segments.all) if is_placed and offset == end.offset else None
        with self._lock:
            start, _, unstable, _ = self.now
            self.now = Marks(start, offset, unstable, placed)

    def bound(self, *, committed: bool) -> ReadEnd:
        """Return the end of reads: the high watermark, or with `committed` the last stable offset.

        Raises:
            SegmentGoneError: the segments have changed meanwhile.
        """
        marks = self.now
        while marks.placed is None:
            placed = self._place(marks.high_watermark)
            with self._lock:
                if self.now is marks:
                    self.now = marks._replace(high_watermark=placed[0].offset, placed=placed)
                marks = self.now
        bound, segments = marks.placed
        if committed and marks.last_stable_offset < bound.offset:
            return self._local.bound(marks.last_stable_offset)
        # With overlapping batches, as a follower may have them, a search by offset would find another batch.
        return bound if segments is self._local.segments.all else self._local.bound(bound.offset)

    def _place(self, offset: int) -> tuple[ReadEnd, tuple[LogSegment, ...]]:
        """Find the start of the first batch that ends at or above an offset; the end of the log without one."""
        # Read both before the search: if it finds no batch, no batch was appended after `end` was read.
        segments, end = self._local.segments.all, self._local.end
        found = self._local.find(offset) if offset < end.offset else None
        if found is None:
            return end, segments
        segment, place = found
        return ReadEnd(segment.first_offset(place), segment.base_offset, place.position), segments


# ---- turns -----------------------------------------------------------------------------------------------------------

#: CPU time after which a reader sleeps, and the most CPU time that counts: after 5 ms Python switches threads anyway.
_TURN_SECONDS, _TURN_SECONDS_MAX = 0.0002, 0.005
#: Seconds of sleep per second of CPU time and per sleeping reader.
_SHARE = 3
#: An entry for each append in progress, and for each sleeping reader. All calls on these lists are atomic.
_appending: list[None] = []
_sleeping: list[None] = []
#: `begin_append(None)` and `end_append()`: readers give way between these two calls.
begin_append, end_append = _appending.append, _appending.pop


class _LastSleep(threading.local):
    """CPU seconds of a thread at its last sleep."""

    at_seconds = 0.0


_last_sleep = _LastSleep()


def give_way(sleep: Callable[[float], object] = time.sleep) -> None:
    """Sleep if an append is in progress and this reader has used its turn; readers call this before each batch."""
    if not _appending:
        return
    now = time.thread_time()
    turn = min(now - _last_sleep.at_seconds, _TURN_SECONDS_MAX)
    if turn < _TURN_SECONDS:
        return
    _sleeping.append(None)
    try:
        sleep(turn * _SHARE * len(_sleeping))
    finally:
        _sleeping.pop()
        _last_sleep.at_seconds = now

"""What was written to a real log, written again to a log in memory: from a time on, with what was there before.

    rows of the log        ...........|.............................|
                           repeated     as they were written
    replay             |  before      |  measured                   |
                       loaded at once: what a compacted log has of the time before

What retention has deleted is not known: where a replay begins earlier than the log does, the log's own traffic is
repeated, in whole days if it has two or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.config import DAY_MS, TopicConfig
from cordwood.simulation.batches import Appender, Records, Room, Written
from cordwood.simulation.trace import Trace, TraceRows, last_of_keys

Int64Array = npt.NDArray[np.int64]

#: What is loaded at first is encoded so many records at once.
_LOADED_RECORDS = 4096
#: A log's own time is repeated so often in what is measured, at most.
_REPEATS_MAX = 60
#: So many times the measured time a replay begins earlier, at most.
_BEFORE_MAX = 2
#: And so much of it for a compacted log, so that it is not measured just after all was cleaned.
_BEFORE_COMPACTED = 0.25


@dataclass(frozen=True, slots=True)
class Span:
    """Which time is replayed, in milliseconds since 1970.

    Attributes:
        begin_ms: when the replay begins.
        measured_ms: since when it is measured.
        end_ms: when it ends.
        repeated_ms: the length of the log's own time that stands for the time before the log; 0: nothing does.
    """

    begin_ms: int
    measured_ms: int
    end_ms: int
    repeated_ms: int = 0


def choose_span(trace: Trace, configs: list[TopicConfig], days: float) -> Span:
    """The last days of a log, and what has to come before so that they begin as they did.

    A log from which nothing was deleted is measured since its first record, at most.
    """
    first_ms, end_ms = trace.first_ms, trace.end_ms
    is_whole = trace.start_offset == 0
    measured_ms = min(round(days * DAY_MS), _REPEATS_MAX * (end_ms - first_ms))
    if is_whole:
        measured_ms = max(1, min(measured_ms, end_ms - first_ms))
    before = [round(_BEFORE_COMPACTED * measured_ms)]
    before += [one.integer("retention.ms") for one in configs if one.delete]
    if not is_whole:
        # What it holds is what its retention leaves, by time or by size.
        before.append(end_ms - first_ms)
    before_ms = min(max(before), _BEFORE_MAX * measured_ms)
    begin_ms = end_ms - measured_ms - before_ms
    if is_whole:
        begin_ms = max(begin_ms, first_ms)
    repeated_ms = 0
    if begin_ms < first_ms:
        known_ms = end_ms - first_ms
        repeated_ms = known_ms // DAY_MS * DAY_MS if known_ms >= 2 * DAY_MS else known_ms
    return Span(begin_ms, end_ms - measured_ms, end_ms, repeated_ms)


def rows_of(trace: Trace, span: Span) -> TraceRows:
    """TRACE_ROW[records]: all that was written until the end of a span, with what is repeated; by time."""
    rows = trace.rows
    if not span.repeated_ms:
        return rows
    source = rows[rows["ms"] >= span.end_ms - span.repeated_ms]
    times = -(-(trace.first_ms - span.begin_ms) // span.repeated_ms)
    copies = []
    for number in range(times, 0, -1):
        copy = source.copy()
        # The last copy ends where the log begins.
        copy["ms"] -= span.end_ms - trace.first_ms + (number - 1) * span.repeated_ms
        copies.append(copy[copy["ms"] >= span.begin_ms])
    return np.concatenate([*copies, rows])


class Replay:
    """Writes records of a trace to one partition of a `World`, in batches of one size."""

    def __init__(
        self, rows: TraceRows, span: Span, config: TopicConfig, *, batch_records: int, less_bytes: int, start_ms: int
    ) -> None:
        """Nothing is written yet.

        Args:
            rows: by time.
            config: what the log is written under: it decides what is there at the beginning.
            less_bytes: by how much each record is smaller than it was, as batches are smaller, so that all take the
                same.
            start_ms: the time in the world at which the span begins.
        """
        _, keys = np.unique(rows["key"], return_inverse=True)
        before = int(np.searchsorted(rows["ms"], span.begin_ms))
        self._records = Records(
            np.asarray(keys, np.int64), rows["is_tombstone"], np.maximum(rows["size_bytes"] - less_bytes, 1)
        )
        self._ms = rows["ms"] - span.begin_ms + start_ms
        self._aborted = rows["is_aborted"]
        self._loaded = _loaded(keys[:before], rows["is_aborted"][:before], rows["is_tombstone"][:before], config)
        self._at, self._is_loaded = before, False
        self._appender = Appender(batch_records)

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Room) -> Iterator[Written]:
        """What comes until a time, but for what has come, in parts; each is to be appended before the next is taken."""
        if not self._is_loaded:
            self._is_loaded = True
            for start in range(0, self._loaded.size, _LOADED_RECORDS):
                own = self._loaded[start : start + _LOADED_RECORDS]
                yield from self._appender.plain(next_offset + start, self._chosen(own), now_ms, room)
            next_offset += self._loaded.size
        end = int(np.searchsorted(self._ms, until_ms))
        at, self._at = self._at, max(self._at, end)
        # Records of one fate together.
        edges = np.flatnonzero(np.diff(self._aborted[at:end])) + at + 1
        for first, behind in zip([at, *edges.tolist()], [*edges.tolist(), end], strict=True):
            if first >= behind:
                continue
            fated = self._chosen(np.arange(first, behind))
            if self._aborted[first]:
                yield from self._appender.transaction(next_offset, fated, now_ms, room, aborted=True)
                next_offset += 1
            else:
                yield from self._appender.plain(next_offset, fated, now_ms, room)
            next_offset += fated.count

    def _chosen(self, at: Int64Array) -> Records:
        records = self._records
        return Records(records.keys[at], records.tombstones[at], records.sizes[at])


def _loaded(
    keys: Int64Array, aborted: npt.NDArray[np.bool_], tombstones: npt.NDArray[np.bool_], config: TopicConfig
) -> Int64Array:
    """int64[records]: which of the records from before a span are there when it begins.

    Of a compacted log the last value of each key; of one that retention limits by time none, as the span begins long
    enough before what is measured; else all of them.
    """
    if config.compact:
        good = np.flatnonzero(~aborted)
        last = good[last_of_keys(keys[good])]
        return np.asarray(last[~tombstones[last]], np.int64)
    if config.delete and config.integer("retention.ms") >= 0:
        return np.zeros(0, np.int64)
    return np.asarray(np.flatnonzero(~aborted), np.int64)

"""Rewrites the records of a real log to a log in memory, starting from the log's state at a chosen time.

    rows of the log        ...........|.............................|
                           repeated     as they were written
    replay             |  before      |  measured                   |
                       a compacted log starts with the last values from the time before, loaded at once

Records that retention deleted are unknown. Where a replay begins before the log's first record, the log's own traffic
is repeated there: in whole days if the log spans two days or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.common.config import DAY_MS, TopicConfig
from cordwood.simulation.batches import Appender, Records, Room, Written
from cordwood.simulation.trace import Trace, TraceRows, last_of_keys

Int64Array = npt.NDArray[np.int64]

#: Records encoded at once when the initial state is loaded.
_LOADED_RECORDS = 4096
#: The measured time is at most this multiple of the log's own time.
_REPEATS_MAX = 60
#: The time before the measured time is at most this multiple of it.
_BEFORE_MAX = 2
#: The time before the measured time is at least this share of it: else it might begin just after a clean of everything.
_BEFORE_COMPACTED = 0.25


@dataclass(frozen=True, slots=True)
class Span:
    """The time to replay, in milliseconds since 1970.

    Attributes:
        begin_ms: start of the replay.
        measured_ms: start of the measured time.
        end_ms: end of the replay, and of the measured time.
        repeated_ms: length of the last part of the log, which is repeated before its first record; 0: not repeated.
    """

    begin_ms: int
    measured_ms: int
    end_ms: int
    repeated_ms: int = 0


def choose_span(trace: Trace, configs: list[TopicConfig], days: float) -> Span:
    """Choose the last days of a log, and enough time before them to bring the replay into the log's state at that time.

    A log that retention has not cut is measured at most from its first record.
    """
    first_ms, end_ms = trace.first_ms, trace.end_ms
    is_whole = trace.start_offset == 0
    measured_ms = min(round(days * DAY_MS), _REPEATS_MAX * (end_ms - first_ms))
    if is_whole:
        measured_ms = max(1, min(measured_ms, end_ms - first_ms))
    before = [round(_BEFORE_COMPACTED * measured_ms)]
    before += [one.integer("retention.ms") for one in configs if one.delete]
    if not is_whole:
        # The log holds as much as its retention keeps, by time or by size.
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
    """Return TRACE_ROW[records] until the end of a span, repeated records included, by time."""
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
        """Prepare the replay; `until` writes.

        Args:
            rows: TRACE_ROW[records], by time.
            config: the topic's configs, which decide the records present at the beginning.
            less_bytes: bytes by which each record shrinks. Smaller batches need more headers; smaller records keep the
                total size.
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
        """Yield the records up to a time, in parts; the caller appends each part before it takes the next."""
        if not self._is_loaded:
            self._is_loaded = True
            for start in range(0, self._loaded.size, _LOADED_RECORDS):
                own = self._loaded[start : start + _LOADED_RECORDS]
                yield from self._appender.plain(next_offset + start, self._chosen(own), now_ms, room)
            next_offset += self._loaded.size
        end = int(np.searchsorted(self._ms, until_ms))
        at, self._at = self._at, max(self._at, end)
        # Aborted and committed records alternate; write each run separately.
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
    """int64[records]: indices of the earlier records that are present when the span begins.

    A compacted log begins with the last value of each key. A log with `retention.ms` begins empty, because the span
    begins early enough to fill it before the measured time. Any other log begins with all records.
    """
    if config.compact:
        good = np.flatnonzero(~aborted)
        last = good[last_of_keys(keys[good])]
        return np.asarray(last[~tombstones[last]], np.int64)
    if config.delete and config.integer("retention.ms") >= 0:
        return np.zeros(0, np.int64)
    return np.asarray(np.flatnonzero(~aborted), np.int64)

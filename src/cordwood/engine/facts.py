"""The facts of a log that need no record: sizes, times, producers, transactions, batch headers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from cordwood.cleaning.plan import (
    HeaderFacts,
    HighWatermark,
    LogFacts,
    OpenTransaction,
    SegmentFacts,
)
from cordwood.cleaning.rewrite import ActiveProducers
from cordwood.errors import RequestError
from cordwood.kernels.layout import CODEC_MASK, DELETE_HORIZON, BatchRows
from cordwood.record.headers import is_control, is_transactional_data
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.recovery import next_offset
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import MAX_OFFSETS, Checks, Gap, GapKind, read_headers
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS, Producers, headers_from, newest_snapshot
from cordwood.types import NONE


def segment_facts(segment: Segment) -> SegmentFacts:
    """What planning needs of a segment, from its files' sizes and the last entry of its time index."""
    entries = _offset_index_entries(segment)
    time_entries, largest = _time_index_end(segment)
    return SegmentFacts(
        segment.base_offset,
        segment.size_bytes,
        offset_index.ENTRY.itemsize * entries,
        time_index.ENTRY.itemsize * time_entries,
        segment.mtime_ms,
        largest if largest >= 0 else segment.mtime_ms,
    )


def cleanable_facts(log: LogView, first_uncleanable: int) -> list[SegmentFacts]:
    """The facts of the segments that a clean may rewrite.

    An active segment is left out: its indexes have room for more entries, 20 MiB in all, which would have to be read.
    """
    return [segment_facts(segment) for segment in log.segments if segment.base_offset < first_uncleanable]


def _offset_index_entries(segment: Segment) -> int:
    """How many entries the offset index has; 0 without one."""
    if (end := _index_end(segment, FileKind.OFFSET_INDEX, offset_index.ENTRY)) is not None:
        return end[0]
    index = segment.offset_index()
    return 0 if index is None else index.entries


def _time_index_end(segment: Segment) -> tuple[int, int]:
    """How many entries the time index has, and the timestamp of the last; 0 and NONE without one."""
    if (end := _index_end(segment, FileKind.TIME_INDEX, time_index.ENTRY)) is not None:
        count, last = end
        return count, NONE if last is None else int(last["timestamp"])
    index = segment.time_index()
    return (0, NONE) if index is None else (index.entries, index.last_entry[0])


def _index_end(segment: Segment, kind: FileKind, entry: np.dtype[np.void]) -> tuple[int, np.void | None] | None:
    """How many entries an index has, and the last of them if it has one, without reading the others.

    That works for closed segments, whose indexes have no room for more entries: the file ends with the last one. For a
    segment of 1 GB it saves reading 5 MB. None: there is no such index, or it ends with zeros, as that of an active
    segment does.
    """
    if (info := segment.files.indexes.get(kind)) is None:
        return None
    count = info.size_bytes // entry.itemsize
    if not count:
        return 0, None
    with segment.fs.open(f"{segment.directory}/{info.name}") as file:
        last = file.read((count - 1) * entry.itemsize, entry.itemsize)
    if len(last) < entry.itemsize or not any(last):
        return None
    return count, np.frombuffer(last, entry)[0]


def load_producers(log: LogView, *, now_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> Producers:
    """Producer state at the end of a log: its newest readable snapshot, and the batches behind it."""
    # A snapshot above the end is of batches that were truncated; a broker removes it when it loads the log.
    end = log.next_offset if log.recovery.snapshots else 0
    producers, start = newest_snapshot(log, end, now_ms=now_ms, expiration_ms=expiration_ms)
    for batches in headers_from(log, start):
        producers.replay(batches)
    return producers


def active_producers(producers: Producers) -> ActiveProducers:
    """The same as columns."""
    rows = producers.rows()
    columns = (rows[name].astype(np.int64) for name in ("producer_id", "last_offset", "producer_epoch"))
    return ActiveProducers(*columns)


def aborted_transactions(log: LogView, from_offset: int, upper_bound: int | None) -> list[AbortedTransaction]:
    """What the transaction indexes know of aborted transactions that reach into [from_offset, upper_bound).

    Without an upper bound it is the end of the segment that holds `from_offset`; looking for that takes its time.
    """
    found: list[AbortedTransaction] = []
    for segment in log.transaction_indexed_from(from_offset):
        index = segment.transaction_index()
        if index is not None:
            upper_bound = segment_end_offset(log.segments_from(from_offset)[0]) if upper_bound is None else upper_bound
            some, complete = index.aborted(log.log_start_offset, upper_bound)
            found += some
            if complete:
                break
    return found


def first_timestamp(segment: Segment) -> int:
    """The largest time of a segment's first batch, by which it rolls; NONE without any."""
    with segment.open() as file:
        for item in read_headers(file, base_offset=segment.base_offset, search=False):
            return NONE if isinstance(item, Gap) else int(item["max_timestamp"][0])
    return NONE


def segment_end_offset(segment: Segment) -> int:
    """The offset behind the last batch of a segment, looked for from its last index entry on."""
    with segment.open() as file:
        start = segment.position_of(file, segment.base_offset + MAX_OFFSETS)
    return next_offset(segment.fs, segment.path, segment.base_offset, start)


# ---- facts of one log ------------------------------------------------------------------------------------------------


@dataclass
class _Replay:
    """Producers at the high watermark, from the newest readable snapshot below it and the batches behind that."""

    producers: Producers
    start: int
    end: int

    @classmethod
    def from_snapshot(cls, log: LogView, end: int, now_ms: int) -> _Replay:
        producers, start = newest_snapshot(log, end, now_ms=now_ms)
        return cls(producers, start, end)

    def add(self, batches: BatchRows) -> None:
        self.producers.replay(batches[(batches["last_offset"] >= self.start) & (batches["base_offset"] < self.end)])

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        found = [OpenTransaction(one.transaction_start, id) for id, one in self.producers.by_id.in_transaction()]
        return tuple(sorted(found, key=lambda one: (one.first_offset, one.producer_id)))


def log_facts(
    place: LocatedPartition, log: LogView, end: int, mark: HighWatermark, now_ms: int, *, headers: bool
) -> LogFacts:
    """Collect the facts of a log.

    Args:
        log: of the partition, with at least one segment.
        now_ms: the time of the plan.
        headers: read batch headers; retention alone does not need them.
    """
    segments = tuple(segment_facts(segment) for segment in log.segments)
    if not headers:
        nothing = (HeaderFacts(),) * len(segments)
        return LogFacts(segments, nothing, log.log_start_offset, end, mark)
    replay = _Replay.from_snapshot(log, mark.offset, now_ms)
    read = _header_facts(log, replay, now_ms)
    assert place.name is not None, "what is not named like a partition is left alone"
    open_transactions = replay.open_transactions()
    return LogFacts(
        tuple(_dated(segment, one, two) for segment, one, two in zip(log.segments, segments, read, strict=True)),
        tuple(read),
        log.log_start_offset,
        end,
        mark,
        place.directory.cleaner_offsets.get(place.name.topic_partition),
        open_transactions,
        _first_unstable_offset(log, open_transactions[0]) if open_transactions else None,
        believed_checkpoint(log),
    )


def _first_unstable_offset(log: LogView, transaction: OpenTransaction) -> int | None:
    """Base offset of the first batch from a transaction's start and the log start on; None if none is there.

    Source: Kafka UnifiedLog.maybeIncrementFirstUnstableOffset, which reads a batch there and takes its offset.
    """
    windows = log.windows(start_offset=max(transaction.first_offset, log.log_start_offset), checks=Checks.HEADERS)
    return next((int(item.batches["base_offset"][0]) for _, item in windows if not isinstance(item, Gap)), None)


def _dated(segment: Segment, facts: SegmentFacts, headers: HeaderFacts) -> SegmentFacts:
    """The largest timestamp as it is once loading has rebuilt the indexes of a segment that lacks them."""
    if FileKind.OFFSET_INDEX in segment.files.indexes or headers.max_timestamp < 0:
        return facts
    return replace(facts, largest_timestamp=headers.max_timestamp)


#: Headers of segments are added up when there are this many, so that small segments take no arrays of their own.
_ROWS_AT_ONCE = 8192


class _HeaderTable:
    """What the batch headers of each segment add up to, by the index of the segment: see `HeaderFacts`."""

    def __init__(self, segments: int, replay: _Replay, now_ms: int) -> None:
        """`replay`: gets all batches, too."""
        self._replay = replay
        self._now_ms = now_ms
        self._waiting: list[tuple[int, BatchRows]] = []
        self._rows = 0
        self._first = np.full(segments, NONE)
        self._is_seen = np.zeros(segments, bool)
        self._sums = {name: np.zeros(segments, np.int64) for name in _SUMS}
        self._largest = {name: np.full(segments, NONE) for name in _LARGEST}
        self.damage = [""] * segments

    def add(self, index: int, rows: BatchRows) -> None:
        """Take in the next headers of a segment; segments come in the order of the log."""
        self._waiting.append((index, rows.copy()))  # the rows lie in a buffer with room for those of a whole window
        self._rows += rows.size
        if self._rows >= _ROWS_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        if not self._waiting:
            return
        indexes, parts = zip(*self._waiting, strict=True)
        self._waiting, self._rows = [], 0
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._replay.add(rows)
        owners = np.repeat(np.array(indexes), [part.size for part in parts])
        starts = np.flatnonzero(np.diff(owners, prepend=NONE))
        owners = owners[starts]
        is_new = ~self._is_seen[owners]
        self._first[owners[is_new]] = rows["max_timestamp"][starts[is_new]]
        self._is_seen[owners] = True
        count, size = np.maximum(rows["record_count"], 0), rows["size_bytes"]
        old = rows["magic"] < 2
        packed = rows["attributes"] & CODEC_MASK != 0
        hidden, control = old & packed, is_control(rows)
        has_horizon = ~old & (rows["attributes"] & DELETE_HORIZON != 0)
        due = has_horizon & (rows["base_timestamp"] <= self._now_ms)
        waiting = has_horizon & ~due
        values = {
            "records": np.where(hidden, 1, np.where(control, 0, count)),
            "wrappers": hidden,
            "legacy": old,
            "compressed_bytes": np.where(packed, size, 0),
            "plain_records": np.where(packed, 0, np.where(old, 1, count)),
            "markers": control,
            "transactional_batches": control | is_transactional_data(rows),
            "expired_batches": due,
            "expired_bytes": np.where(due, size, 0),
            "waiting_bytes": np.where(waiting, size, 0),
        }
        for name, sums in self._sums.items():
            sums[owners] += np.add.reduceat(values[name].astype(np.int64), starts)
        times = {
            "max_timestamp": rows["max_timestamp"],
            "last_horizon_ms": np.where(waiting, rows["base_timestamp"], NONE),
        }
        for name, largest in self._largest.items():
            largest[owners] = np.maximum(largest[owners], np.maximum.reduceat(times[name], starts))

    def facts(self) -> list[HeaderFacts]:
        """Return the facts of all segments."""
        self._add_up()
        columns = {"first_timestamp": self._first.tolist(), "damage": self.damage}
        columns |= {name: values.tolist() for name, values in (self._sums | self._largest).items()}
        columns |= {name: [bool(value) for value in columns[name]] for name in ("wrappers", "legacy")}
        rows = zip(*columns.values(), strict=True)
        return [HeaderFacts(**dict(zip(columns, row, strict=True))) for row in rows]


_LARGEST = ("max_timestamp", "last_horizon_ms")
_SUMS = tuple(field.name for field in fields(HeaderFacts) if field.name not in ("first_timestamp", "damage", *_LARGEST))


def _header_facts(log: LogView, replay: _Replay, now_ms: int) -> list[HeaderFacts]:
    """Return the facts of each segment, and replay its batches."""
    table = _HeaderTable(len(log.segments), replay, now_ms)
    for index, segment in enumerate(log.segments):
        last = segment is log.segments[-1]
        # Of the active segment only open transactions matter.
        if last and replay.start >= replay.end:
            continue
        try:
            with segment.open() as file:
                for item in read_headers(file, base_offset=segment.base_offset, search=not log.live):
                    if not isinstance(item, Gap):
                        table.add(index, item)
                    # At the log's end it may be what a stop leaves.
                    elif not last or (item.kind is GapKind.DAMAGE and not log.live):
                        table.damage[index] = table.damage[index] or str(gap_error(segment, item))
        except RequestError as error:
            table.damage[index] = str(error)
    return table.facts()

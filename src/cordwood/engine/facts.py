"""The facts of a log that need no record: sizes, times, producers, transactions, batch headers."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
        return count, int(last["timestamp"])
    index = segment.time_index()
    return (0, NONE) if index is None else (index.entries, index.last_entry[0])


def _index_end(segment: Segment, kind: FileKind, entry: np.dtype[np.void]) -> tuple[int, np.void] | None:
    """How many entries an index has, and the last of them, without reading the others.

    That works for closed segments, whose indexes have no room for more entries: the file ends with the last one. For a
    segment of 1 GB it saves reading 5 MB. None: there is no such index, or it ends with zeros, as that of an active
    segment does.
    """
    path = segment.index_path(kind)
    if path is None:
        return None
    with segment.fs.open(path) as file:
        count = file.size() // entry.itemsize
        last = file.read((count - 1) * entry.itemsize, entry.itemsize) if count else b""
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
    segments = log.segments_from(from_offset)
    for segment in segments:
        index = segment.transaction_index()
        if index is not None:
            upper_bound = segment_end_offset(segments[0]) if upper_bound is None else upper_bound
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
    read = []
    for segment in log.segments:
        # Of the active segment only open transactions matter.
        if segment is not log.segments[-1] or replay.start < replay.end:
            read.append(_headers(log, segment, replay, now_ms))
        else:
            read.append(HeaderFacts())
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


def _headers(log: LogView, segment: Segment, replay: _Replay, now_ms: int) -> HeaderFacts:
    last = segment is log.segments[-1]
    first, largest, records, markers, expired = NONE, NONE, 0, 0, 0
    compressed_bytes = plain_records = transactional = expired_bytes = waiting_bytes = 0
    horizon = NONE
    seen = wrappers = legacy = False
    damage = ""
    try:
        with segment.open() as file:
            for item in read_headers(file, base_offset=segment.base_offset, search=not log.live):
                if isinstance(item, Gap):
                    # At the log's end it may be what a stop leaves.
                    if not last or (item.kind is GapKind.DAMAGE and not log.live):
                        damage = damage or str(gap_error(segment, item))
                    continue
                replay.add(item)
                if not seen:
                    seen, first = True, int(item["max_timestamp"][0])
                largest = max(largest, int(item["max_timestamp"].max()))
                old = item["magic"] < 2
                packed = item["attributes"] & CODEC_MASK != 0
                hidden, control = old & packed, is_control(item)
                has_horizon = ~old & (item["attributes"] & DELETE_HORIZON != 0)
                due = has_horizon & (item["base_timestamp"] <= now_ms)
                waiting = has_horizon & ~due
                data = item["record_count"][~control & ~hidden]
                records += int(np.maximum(data, 0).sum()) + int(hidden.sum())
                wrappers, legacy = wrappers or bool(hidden.any()), legacy or bool(old.any())
                compressed_bytes += int(item["size_bytes"][packed].sum())
                plain_records += int(np.where(old, 1, np.maximum(item["record_count"], 0))[~packed].sum())
                markers += int(control.sum())
                transactional += int((control | is_transactional_data(item)).sum())
                expired += int(due.sum())
                expired_bytes += int(item["size_bytes"][due].sum())
                waiting_bytes += int(item["size_bytes"][waiting].sum())
                horizon = int(item["base_timestamp"][waiting].max(initial=horizon))
    except RequestError as error:
        damage = str(error)
    return HeaderFacts(
        first,
        largest,
        records,
        wrappers,
        legacy,
        compressed_bytes,
        plain_records,
        markers,
        transactional,
        expired,
        damage,
        expired_bytes,
        waiting_bytes,
        horizon,
    )

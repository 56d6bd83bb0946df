"""Collect what a clean needs before it decodes a record: the facts of a log, and the configs that its clean applies.

Facts are sizes, times, producers, transactions and batch headers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.held import NOTHING_HELD, HeldOffsets
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.cleaning.rules.plan import (
    BlockingTransaction,
    Choices,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    PartitionPlan,
    SegmentFacts,
    Threshold,
)
from cordwood.cleaning.rules.precedence import KEEP_RULE, Precedence
from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.common.types import NONE
from cordwood.kernels.layout import (
    CODEC_MASK,
    DELETE_HORIZON,
    BatchRows,
    concerns_transactions,
    is_control,
    joined_rows,
)
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.header_sample import HeaderSample, is_small, sample_headers
from cordwood.storage.log.loaded import LoadedLog, LoadedSegment, loaded_sizes, trusted
from cordwood.storage.log.recovery import next_offset
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error, joined, part_numbers, parts_of, skip_gap
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import MAX_OFFSETS, Checks, Gap, read_headers
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS, Producers, headers_from, newest_snapshot


def segment_facts(segment: Segment) -> SegmentFacts:
    """Return the facts of a segment whose indexes are complete, like those of a clean's outputs."""
    return loaded_facts(trusted(segment))


def loaded_facts(segment: LoadedSegment) -> SegmentFacts:
    """Return the facts of a segment as a load leaves it."""
    files = segment.segment.files
    return SegmentFacts(
        segment.segment.base_offset,
        segment.size_bytes,
        segment.index_bytes,
        segment.time_index_bytes,
        segment.mtime_ms,
        segment.largest_timestamp,
        sum(info.disk_bytes for info in (files.log, *files.indexes.values())),
    )


def cleanable_facts(log: LogView, first_uncleanable: int, now_ms: int) -> list[SegmentFacts]:
    """Return the facts of the segments that a clean may rewrite; a load has already repaired them if necessary.

    Groups depend on sizes, so no time index is read; the largest timestamp is missing.
    """
    some = [segment for segment in log.segments if segment.base_offset < first_uncleanable]
    return [loaded_facts(loaded_sizes(segment, now_ms)) for segment in some]


def load_producers(
    log: LogView, *, now_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS, end: int | None = None
) -> Producers:
    """Return the producer state at the end of a log: its newest readable snapshot plus the batches after it.

    Args:
        end: the log end offset, if it is known.
    """
    producers, start, end = _from_snapshot(log, now_ms, expiration_ms, end)
    if start < end:
        for batches in headers_from(log, start):
            producers.replay(batches)
    return producers


def _from_snapshot(log: LogView, now_ms: int, expiration_ms: int, end: int | None = None) -> tuple[Producers, int, int]:
    """Return the newest readable producer state, the offset from which batches must be replayed, and the log's end."""
    # A snapshot above the end belongs to truncated batches; a broker removes it when it loads the log.
    if end is None:
        end = log.next_offset if log.recovery.snapshots else 0
    producers, start = newest_snapshot(log, end, now_ms=now_ms, expiration_ms=expiration_ms)
    return producers, start, end if log.recovery.snapshots else MAX_OFFSET


def seems_without_transactions(log: LogView, *, now_ms: int) -> bool:
    """Return whether a large log seems to have no open transaction, by its newest producer snapshot and a sample.

    No producer in the snapshot has ever ended a transaction, or has one open, and no sampled batch after the snapshot
    is of a transaction. False also if the snapshot is at the log's end, as no header is needed then.
    """
    if is_small(log) or log.fs.reads_by_request(log.path):
        return False
    producers, start, end = _from_snapshot(log, now_ms, DEFAULT_EXPIRATION_MS)
    known = producers.rows()
    # A producer gets a coordinator's epoch with its first marker.
    has_any = (known["coordinator_epoch"] != NONE) | (known["current_transaction_first_offset"] != NONE)
    if start >= end or has_any.any():
        return False
    for segment in log.segments_from(start):
        if FileKind.TRANSACTION_INDEX in segment.files.indexes:
            return False
        sample = sample_headers(segment, search=not log.live)
        batches = segment.headers(skip_gap, search=not log.live) if sample is None else [sample.rows]
        if any(concerns_transactions(rows).any() for rows in batches):
            return False
    return True


def aborted_transactions(log: LogView, from_offset: int, upper_bound: int | None) -> list[AbortedTransaction]:
    """Return the transaction indexes' entries for aborted transactions that reach into [from_offset, upper_bound).

    Without an upper bound, use the end of the segment that holds `from_offset`; finding that end takes time.
    """
    found: list[AbortedTransaction] = []
    for segment in log.transaction_indexed_from(from_offset):
        index = segment.transaction_index()
        if index is not None:
            upper_bound = _segment_end_offset(log.segments_from(from_offset)[0]) if upper_bound is None else upper_bound
            some, complete = index.aborted(log.log_start_offset, upper_bound)
            found += some
            if complete:
                break
    return found


def first_timestamp(segment: Segment) -> int:
    """Return the largest timestamp of a segment's first batch, by which it rolls; NONE without batches."""
    with segment.open() as file:
        for item in read_headers(file, base_offset=segment.base_offset, search=False):
            return NONE if isinstance(item, Gap) else int(item["max_timestamp"][0])
    return NONE


#: In segments up to this size all old batches are counted; in larger ones only those before the first younger batch.
_COUNTED_BYTES = 1 << 20


def old_bytes(segment: Segment, horizon_ms: int) -> int:
    """Return the bytes of batches whose newest record is older than a time; see `_COUNTED_BYTES`."""
    start = 0
    with segment.open() as file:
        is_small = segment.size_bytes <= _COUNTED_BYTES
        if not is_small:
            times = segment.time_index()
            at = 0 if times is None else int(np.searchsorted(times.timestamps, horizon_ms))
            if times is None or not at:
                return 0
            start = segment.position_of(file, int(times.offsets[at - 1]))
        found = start
        for item in read_headers(file, base_offset=segment.base_offset, start=start, search=False):
            if isinstance(item, Gap):
                break
            is_old = (item["max_timestamp"] >= 0) & (item["max_timestamp"] < horizon_ms)
            if not is_small and not is_old.all():
                return found + int(item["size_bytes"][: int(np.argmin(is_old))].sum())
            found += int(item["size_bytes"][is_old].sum())
    return found


def _segment_end_offset(segment: Segment) -> int:
    """Return the offset after the last batch of a segment, found by reading from its last index entry on."""
    with segment.open() as file:
        start = segment.position_of(file, segment.base_offset + MAX_OFFSETS)
    return next_offset(segment.fs, segment.path, segment.base_offset, start)


# ---- facts of one log ------------------------------------------------------------------------------------------------


@dataclass
class _Replay:
    """Producers at the high watermark, from the newest readable snapshot below it and the batches after that."""

    producers: Producers
    start: int
    end: int

    @classmethod
    def from_snapshot(cls, log: LogView, end: int, now_ms: int) -> _Replay:
        producers, start = newest_snapshot(log, end, now_ms=now_ms)
        return cls(producers, start, end)

    def add(self, batches: BatchRows) -> None:
        self.producers.replay(batches[(batches["last_offset"] >= self.start) & (batches["base_offset"] < self.end)])

    def opens_below(self, offset: int) -> bool:
        """Return whether a transaction that starts below an offset is open so far."""
        return any(one.transaction_start < offset for _, one in self.producers.by_id.in_transaction())

    def open_transactions(self) -> tuple[BlockingTransaction, ...]:
        found = [BlockingTransaction(one.transaction_start, id) for id, one in self.producers.by_id.in_transaction()]
        return tuple(sorted(found, key=lambda one: (one.first_offset, one.producer_id)))


def log_facts(
    place: LocatedPartition, loaded: LoadedLog, mark: HighWatermark, now_ms: int, *, headers: bool, exact: bool = False
) -> LogFacts:
    """Collect the facts of a log.

    Args:
        loaded: the partition's log, with at least one segment.
        now_ms: the time of the plan.
        headers: read batch headers; retention alone does not need them.
        exact: read all headers of a large log, not a sample. Facts that decide are the same.
    """
    log, end = loaded.log, loaded.log_end_offset
    segments = tuple(map(loaded_facts, loaded.segments))
    if not headers:
        nothing = (HeaderFacts(),) * len(segments)
        return LogFacts(segments, nothing, log.log_start_offset, end, mark)
    replay = _Replay.from_snapshot(log, mark.offset, now_ms)
    if exact or is_small(log):
        read = _header_facts(loaded, now_ms, replay=replay)
        open_transactions = replay.open_transactions()
    else:
        read = _header_facts(loaded, now_ms, replay=None)
        open_transactions = _blocking_transactions(loaded, replay)
    assert place.name is not None, "what is not named like a partition is left alone"
    return LogFacts(
        segments,
        tuple(read),
        log.log_start_offset,
        end,
        mark,
        place.directory.cleaner_offsets.get(place.name.topic_partition),
        open_transactions,
        _first_unstable_offset(log, open_transactions[0]) if open_transactions else None,
    )


def _blocking_transactions(loaded: LoadedLog, replay: _Replay) -> tuple[BlockingTransaction, ...]:
    """Return the open transactions that limit a clean; read only headers that can change them.

    A clean ends at the last segment that starts at or below the high watermark. A broker writes a snapshot when it
    starts a segment, with all producers that have an open transaction. So if the snapshot of that segment has none,
    all below it is stable, and no header is read. Otherwise its batches show which of these transactions end up to the
    high watermark. If the high watermark is in a closed segment, a transaction that begins there is the reason for the
    end of the clean, so the segment is read, too.
    """
    segments = [one.segment for one in loaded.segments]
    active = segments[-1].base_offset
    limit = max(one.base_offset for one in segments if one.base_offset <= max(replay.end, segments[0].base_offset))
    ends = {one.segment.base_offset: one.size_bytes for one in loaded.segments if one.cut_bytes}
    is_complete = True
    for segment in loaded.log.segments_from(replay.start) if replay.start < replay.end else ():
        if segment.base_offset > limit or segment.base_offset >= replay.end:
            break
        is_last = segment.base_offset == limit == active
        headers = segment.headers_and_gaps(end=ends.get(segment.base_offset), search=not loaded.log.live)
        while is_complete := not is_last or replay.opens_below(limit):
            if (item := next(headers, None)) is None:
                break
            if not isinstance(item, Gap):
                replay.add(item)
    found = replay.open_transactions()
    return found if is_complete else tuple(one for one in found if one.first_offset < limit)


def _first_unstable_offset(log: LogView, transaction: BlockingTransaction) -> int | None:
    """Return the base offset of the first batch at or after both a transaction's start and the log start, or None.

    Source: Kafka UnifiedLog.maybeIncrementFirstUnstableOffset, which reads a batch there and takes its offset.
    """
    windows = log.windows(start_offset=max(transaction.first_offset, log.log_start_offset), checks=Checks.HEADERS)
    return next((int(item.batches["base_offset"][0]) for _, item in windows if not isinstance(item, Gap)), None)


#: Number of batch headers that are summed up at once, so that small segments need no arrays of their own.
_ROWS_AT_ONCE = 8192


class _HeaderTable:
    """Totals over the batch headers of each segment, by the index of the segment: see `HeaderFacts`."""

    def __init__(self, segments: int, replay: _Replay | None, now_ms: int) -> None:
        """`replay`: also receives all batches, if none is left out."""
        self._replay = replay
        self._now_ms = now_ms
        self._waiting: list[tuple[npt.NDArray[np.int64], BatchRows]] = []
        self._rows = 0
        self._first = np.full(segments, NONE)
        self._is_seen = np.zeros(segments, bool)
        self._sums = {name: np.zeros(segments, np.int64) for name in _SUMS}
        self._largest = {name: np.full(segments, NONE) for name in _LARGEST}
        self._is_sampled = np.zeros(segments, bool)
        self._errors = np.zeros(segments, np.int64)
        self.damage = [""] * segments

    def add(self, indexes: npt.NDArray[np.int64], rows: BatchRows) -> None:
        """Add the next headers, each with the index of its segment; call it in log order."""
        self._waiting.append((indexes, rows.copy()))  # the rows are views of a buffer for a whole window
        self._rows += rows.size
        if self._rows >= _ROWS_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        if not self._waiting:
            return
        owners = np.concatenate([owners for owners, _ in self._waiting])
        rows = joined_rows([rows for _, rows in self._waiting])
        self._waiting, self._rows = [], 0
        if self._replay is not None:
            self._replay.add(rows)
        starts = np.flatnonzero(np.diff(owners, prepend=NONE))
        owners = owners[starts]
        is_new = ~self._is_seen[owners]
        self._first[owners[is_new]] = rows["max_timestamp"][starts[is_new]]
        self._is_seen[owners] = True
        values = self._values(rows)
        for name, sums in self._sums.items():
            sums[owners] += np.add.reduceat(values[name].astype(np.int64), starts)
        for name, largest in self._largest.items():
            largest[owners] = np.maximum(largest[owners], np.maximum.reduceat(values[name], starts))

    def add_sample(self, index: int, sample: HeaderSample) -> None:
        """Add a sample of the headers of a segment."""
        values = self._values(sample.rows)
        self._first[index], self._is_seen[index] = sample.rows["max_timestamp"][0], True
        for name, sums in self._sums.items():
            total = sample.total(values[name])
            # A figure that is not 0 in the sample is not 0.
            sums[index] = max(round(total.value), int(values[name].sum()))
            if name == "records":
                self._errors[index] = round(total.error)
        for name, largest in self._largest.items():
            largest[index] = values[name].max()
        self._is_sampled[index] = True

    def _values(self, rows: BatchRows) -> dict[str, npt.NDArray[np.int64]]:
        """Return the figures of each batch, by the name of their total."""
        count, size = np.maximum(rows["record_count"], 0), rows["size_bytes"]
        old = rows["magic"] < 2
        packed = rows["attributes"] & CODEC_MASK != 0
        hidden, control = old & packed, is_control(rows)
        has_horizon = ~old & (rows["attributes"] & DELETE_HORIZON != 0)
        due = has_horizon & (rows["base_timestamp"] <= self._now_ms)
        waiting = has_horizon & ~due
        return {
            "records": np.where(hidden, 1, np.where(control, 0, count)),
            "wrappers": hidden,
            "legacy": old,
            "compressed_bytes": np.where(packed, size, 0),
            "plain_records": np.where(packed, 0, np.where(old, 1, count)),
            "markers": control,
            "transactional_batches": concerns_transactions(rows),
            "expired_batches": due,
            "expired_bytes": np.where(due, size, 0),
            "waiting_bytes": np.where(waiting, size, 0),
            "last_horizon_ms": np.where(waiting, rows["base_timestamp"], NONE),
        }

    def facts(self) -> list[HeaderFacts]:
        """Return the facts of all segments."""
        self._add_up()
        columns = {"first_timestamp": self._first.tolist(), "damage": self.damage}
        columns |= {"is_sampled": self._is_sampled.tolist(), "records_error": self._errors.tolist()}
        columns |= {name: values.tolist() for name, values in (self._sums | self._largest).items()}
        columns |= {name: [bool(value) for value in columns[name]] for name in ("wrappers", "legacy")}
        rows = zip(*columns.values(), strict=True)
        return [HeaderFacts(**dict(zip(columns, row, strict=True))) for row in rows]


_LARGEST = ("last_horizon_ms",)
_NO_SUMS = ("first_timestamp", "damage", "is_sampled", "records_error", *_LARGEST)
_SUMS = tuple(field.name for field in fields(HeaderFacts) if field.name not in _NO_SUMS)


def _header_facts(loaded: LoadedLog, now_ms: int, *, replay: _Replay | None) -> list[HeaderFacts]:
    """Return the facts of each segment: of all headers if these are replayed, else of a sample."""
    log, table = loaded.log, _HeaderTable(len(loaded.segments), replay, now_ms)
    indexes = {one.segment.base_offset: index for index, one in enumerate(loaded.segments)}
    # Bytes that a load cuts off are not read.
    ends = {one.segment.base_offset: one.size_bytes for one in loaded.segments if one.cut_bytes}
    *closed, active = (one.segment for one in loaded.segments)

    def read(segment: Segment) -> None:
        first, end = indexes[segment.base_offset], ends.get(segment.base_offset)
        try:
            sample = None if replay is not None or end is not None else sample_headers(segment, search=not log.live)
            if sample is not None:
                table.add_sample(first, sample)
            items = segment.headers_and_gaps(end=end, search=not log.live) if sample is None else sample.gaps
            for item in items:
                if not isinstance(item, Gap):
                    table.add(first + part_numbers(segment, item["position"]), item)
                elif not log.is_end(segment, item):
                    table.damage[first] = table.damage[first] or str(gap_error(segment, item))
        except RequestError as error:
            table.damage[first] = str(error)

    for segment in joined(closed, apart=ends):
        try:
            read(segment)
        except CorruptBatchError:
            for part in parts_of(segment):
                read(part)
    # For the active segment only open transactions matter.
    if replay is not None and replay.start < replay.end:
        read(active)
    return table.facts()


# ---- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """The configs that the clean of one partition applies.

    Attributes:
        delete_retention_ms: `delete.retention.ms`.
        segment_bytes: `segment.bytes`.
        index: `segment.index.bytes` and `index.interval.bytes`.
        producer_expiration_ms: `producer.id.expiration.ms`.
        deletes_for_good, held: see `Elision`.
        offset_map_slots: size of Kafka's offset map, which ends a round when it is full; None for no limit.
        offset_map_load_factor: share of the slots that may be filled; `log.cleaner.io.buffer.load.factor`.
        threshold: how dirty the log must still be for a further round.
        strict_kafka: see `Rules`; also, a clean fails if an index of an output is full, as in Kafka.
        memory: limit of the key table; None for no limit.
        precedence: the keep rule; with an offset map, only newest offset.
    """

    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    index: IndexLimits = field(default_factory=IndexLimits)
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS
    deletes_for_good: bool = True
    held: HeldOffsets = NOTHING_HELD
    offset_map_slots: int | None = None
    offset_map_load_factor: float = 0.9
    threshold: Threshold = field(default_factory=Threshold)
    strict_kafka: bool = False
    memory: MemoryShare | None = None
    precedence: Precedence = KEEP_RULE

    def __post_init__(self) -> None:
        assert self.precedence.is_log_order or self.offset_map_slots is None, "an offset map has no ranks"


def clean_settings(partition: PartitionPlan, choices: Choices | None = None) -> CleanSettings:
    """Return the settings of a task that cleans a planned partition."""
    choices = choices or Choices()
    size = partition.offset_map
    ratio = NONE if choices.ignore_ratio else partition.setting("min.cleanable.dirty.ratio")
    return CleanSettings(
        delete_retention_ms=int(partition.setting("delete.retention.ms")),
        segment_bytes=int(partition.setting("segment.bytes")),
        index=IndexLimits(
            interval_bytes=int(partition.setting("index.interval.bytes")),
            size_bytes=int(partition.setting("segment.index.bytes")),
        ),
        deletes_for_good=partition.deletes_for_good,
        offset_map_slots=None if size is None else size.slots,
        offset_map_load_factor=0.9 if size is None else size.load_factor,
        threshold=Threshold(
            cleanable_ratio=ratio,
            min_compaction_lag_ms=int(partition.setting("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(partition.setting("max.compaction.lag.ms")),
        ),
        strict_kafka=choices.strict_kafka,
    )

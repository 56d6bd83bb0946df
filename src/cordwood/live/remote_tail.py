"""The part of a live log that is only in its tier, for reads below the first local segment.

Segments are found by bisection in the state of the newest manifest. A new state replaces the old one as a whole. The
logs of a manager share one `RemoteSegments`, which keeps the segments that were read last open:

    .log      with the bytes that the file has read ahead, and the end of the last read
    indexes   in memory, once a read begins neither at the segment's start nor at that end

So a sequential reader needs no index.

Source: Kafka RemoteLogManager.read, RemoteLogManager.findOffsetByTimestamp. Differs: Kafka caches indexes on its disk.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import (
    CorruptRecordError,
    DataError,
    IllegalArgumentError,
    KafkaStorageError,
    StoreError,
)
from cordwood.common.types import NONE
from cordwood.fs.base import ReadableFile, TargetStore
from cordwood.live.local_log import FetchData
from cordwood.live.segments import RecordAtTime
from cordwood.live.validation import read_batches, read_records
from cordwood.storage.formats import offset_index, time_index, transaction_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.offset_index import OffsetIndex
from cordwood.storage.formats.time_index import TimeIndex
from cordwood.storage.formats.transaction_index import AbortedTransaction, TransactionIndex
from cordwood.storage.log.segment import MAX_OFFSET, header_at
from cordwood.storage.tier.configured import LayoutKind
from cordwood.storage.tier.local import Layout
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.segments import RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import Tier, TierStore

#: Number of segments whose `.log` stays open. Each may have read 16 MB ahead.
_LOGS_OPEN = 16
#: Bytes of indexes that stay in memory, and about the memory that those of a segment take beside their bytes.
_INDEX_BYTES, _OBJECTS_BYTES = 64 << 20, 2_000


@dataclass(frozen=True, slots=True)
class _Indexes:
    """The indexes of a segment."""

    offsets: OffsetIndex
    times: TimeIndex
    aborted: TransactionIndex
    size_bytes: int


class _OpenSegment:
    """A segment of the tier that is being read, or was read not long ago.

    Attributes:
        readers: number of reads in progress.
        kept_bytes: size of its indexes in memory, as its owner counted them.
        resume: offset and position behind the last whole batch that was read.
    """

    def __init__(self, layout: Layout, segment: RemoteSegment) -> None:
        self.segment = segment
        self.readers = self.kept_bytes = 0
        self.resume = (segment.start_offset, 0)
        self._layout = layout
        self._lock = threading.Lock()
        self._log: ReadableFile | None = None
        self._indexes: _Indexes | None = None

    @property
    def log(self) -> ReadableFile:
        """Its `.log`, which is opened if it is not open."""
        with self._lock:
            if self._log is None:
                self._log = self._layout.open(self.segment, FileKind.LOG)
            return self._log

    @property
    def indexes(self) -> _Indexes:
        """Its indexes, which are read if they are not in memory."""
        with self._lock:
            if self._indexes is None:
                self._indexes = self._read_indexes()
            return self._indexes

    @property
    def index_bytes(self) -> int:
        """Size of the indexes in memory."""
        return 0 if self._indexes is None else self._indexes.size_bytes

    def close_log(self) -> None:
        """Close its `.log`, which has no readers now."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _read_indexes(self) -> _Indexes:
        def content(kind: FileKind) -> bytes:
            with self._layout.open(self.segment, kind) as file:
                return file.read(0, file.size())

        start = self.segment.start_offset
        aborted = b"" if self.segment.transaction_index_empty else content(FileKind.TRANSACTION_INDEX)
        offsets, times = content(FileKind.OFFSET_INDEX), content(FileKind.TIME_INDEX)
        return _Indexes(
            offset_index.decode(offsets, start),
            time_index.decode(times, start),
            transaction_index.decode(aborted),
            len(offsets) + len(times) + len(aborted) + _OBJECTS_BYTES,
        )


class RemoteSegments:
    """The last read segments of a tier, of all logs that share it; the most recently used segment is at the end.

    Attributes:
        index_bytes: memory for indexes.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.index_bytes = 0
        self._lock = threading.Lock()
        self._segments: OrderedDict[str, _OpenSegment] = OrderedDict()
        #: Those whose `.log` is open.
        self._logs: OrderedDict[str, _OpenSegment] = OrderedDict()

    @property
    def open_logs(self) -> int:
        """Number of open `.log` files."""
        return len(self._logs)

    @contextlib.contextmanager
    def opened(self, segment: RemoteSegment) -> Iterator[_OpenSegment]:
        """Keep a segment open during the block."""
        key = segment.id
        with self._lock:
            opened = self._segments.setdefault(key, _OpenSegment(self.layout, segment))
            self._logs[key] = opened
            self._segments.move_to_end(key)
            self._logs.move_to_end(key)
            opened.readers += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.readers -= 1
                self.index_bytes += opened.index_bytes - opened.kept_bytes
                opened.kept_bytes = opened.index_bytes
                self._limit()

    def _limit(self) -> None:
        """Close logs, and drop indexes, that were not used for the longest time."""
        while len(self._logs) > _LOGS_OPEN and (idle := _first_idle(self._logs)) is not None:
            idle.close_log()
            del self._logs[idle.segment.id]
            if not idle.kept_bytes:
                self._drop(idle)
        while self.index_bytes > _INDEX_BYTES and (idle := _first_idle(self._segments)) is not None:
            self._drop(idle)

    def drop(self, partition: TopicIdPartition) -> None:
        """Close the segments of a log that have no readers now."""
        with self._lock:
            for one in [one for one in self._segments.values() if one.segment.topic_id_partition == partition]:
                if not one.readers:
                    self._drop(one)

    def _drop(self, one: _OpenSegment) -> None:
        one.close_log()
        self.index_bytes -= one.kept_bytes
        del self._segments[one.segment.id]
        self._logs.pop(one.segment.id, None)


def _first_idle(segments: OrderedDict[str, _OpenSegment]) -> _OpenSegment | None:
    """Return the segment without a reader that was not used for the longest time; None if all have one."""
    return next((one for one in segments.values() if not one.readers), None)


#: Adds the aborted transactions that overlap offsets [start, end), from the segments on the disk.
CollectLocal = Callable[[int, int, list[AbortedTransaction]], None]


class RemoteTail:
    """Reads the segments that a state names.

    Attributes:
        state: the newest committed state; its owner replaces it.
        root: where the tier is.
        fetched_bytes, fetches, errors: sums since the log was opened.
    """

    def __init__(self, segments: RemoteSegments, root: str, state: TierState) -> None:
        self.state = state
        self.root = root
        self.fetched_bytes = self.fetches = self.errors = 0
        self._segments = segments

    @property
    def copied_end(self) -> int:
        """The offset after the last one in the tier."""
        return self.state.copied_end

    def read(
        self, start: int, max_bytes: int, *, min_one_message: bool, collect_local: CollectLocal | None
    ) -> FetchData | None:
        """Read batches from an offset on, up to the end of one segment; None if the tier ends before the offset.

        Args:
            min_one_message: return the first batch even if it is larger.
            collect_local: None: do not return aborted transactions.

        Raises:
            KafkaStorageError: the tier cannot be read. The log stays online.
        """
        try:
            return self._read(start, max_bytes, min_one_message=min_one_message, collect_local=collect_local)
        except (OSError, StoreError, DataError) as error:
            self.errors += 1
            raise KafkaStorageError(f"offset {start} cannot be read from the tier: {error}") from error

    def _read(
        self, start: int, max_bytes: int, *, min_one_message: bool, collect_local: CollectLocal | None
    ) -> FetchData | None:
        for at, segment in self._from(start):
            with self._segments.opened(segment) as opened:
                found = _batch_ending_at(opened, start)
                if found is None:
                    continue
                position, size, first = found
                limit = max(max_bytes, size) if min_one_message else max_bytes
                records = opened.log.read(position, min(limit, opened.log.size() - position))
                _note_end(opened, records, position)
                end = MAX_OFFSET if collect_local is None else _offset_behind(opened, position + len(records))
            self.fetches += 1
            self.fetched_bytes += len(records)
            aborted = None if collect_local is None else self._aborted(start, end, at, collect_local)
            return FetchData(first, records, 0 < limit < size, aborted)
        return None

    def beside(self, fs: TargetStore, directory: str) -> TierStore:
        """Return a store that shows the log in a directory with its segments in the tier, as they are now."""
        return TierStore(
            fs, Tier(self.root, kind=LayoutKind.AIVEN), self._segments.layout, states={directory: self.state}
        )

    def segments_between(self, start: int, end: int) -> list[RemoteSegment]:
        """Return the segments that hold offsets from `start` on and begin below `end`."""
        return list(itertools.takewhile(lambda one: one.start_offset < end, (one for _, one in self._from(start))))

    def first_timestamp(self, segment: RemoteSegment) -> int:
        """Return the largest timestamp of the first batch of a segment.

        Raises:
            KafkaStorageError: the tier cannot be read.
        """
        try:
            with self._segments.opened(segment) as opened:
                first = header_at(opened.log, 0)
        except (OSError, StoreError, DataError) as error:
            self.errors += 1
            raise KafkaStorageError(f"segment {segment.id} cannot be read from the tier: {error}") from error
        return NONE if first is None else int(first["max_timestamp"])

    def _from(self, offset: int) -> Iterator[tuple[int, RemoteSegment]]:
        """Yield the segments that hold an offset and later ones, each with its place."""
        segments = self.state.packed
        for at in range(int(np.searchsorted(segments.end_offsets, offset)), len(segments)):
            yield at, segments[at].segment

    def _aborted(self, start: int, end: int, at: int, collect_local: CollectLocal) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that overlap offsets [start, end); some may end in later segments."""
        found: list[AbortedTransaction] = []
        for one in self.state.segments[at:]:
            if not one.segment.transaction_index_empty:
                with self._segments.opened(one.segment) as opened:
                    some, is_complete = opened.indexes.aborted.aborted(start, end)
                found += some
                if is_complete:
                    return tuple(found)
        collect_local(start, end, found)
        return tuple(found)

    def first_since(self, timestamp: int, start: int, end: int) -> tuple[RecordAtTime | None, bool]:
        """Find the first record in the tier that is not older than a timestamp.

        Like Kafka, search only the first segment whose largest timestamp is not older.

        Args:
            start: the log start offset.
            end: the first local offset.

        Returns:
            the record, or None; and whether such a segment is in the tier, so that the search is at its end.

        Raises:
            KafkaStorageError: the tier cannot be read.
        """
        segments = self.state.packed
        newer = np.flatnonzero((segments.end_offsets >= start) & (segments.max_timestamps >= timestamp))
        if not newer.size or (segment := segments[int(newer[0])].segment).start_offset >= end:
            return None, False
        try:
            with self._segments.opened(segment) as opened:
                return _first_record(opened, timestamp, start), True
        except (OSError, StoreError, DataError) as error:
            self.errors += 1
            raise KafkaStorageError(f"time {timestamp} cannot be looked up in the tier: {error}") from error

    def close(self) -> None:
        """Close the log's segments that have no readers now."""
        self._segments.drop(self.state.partition)


def _batch_ending_at(opened: _OpenSegment, offset: int) -> tuple[int, int, int] | None:
    """Return position, size and base offset of the first batch that ends at or above an offset; None without one."""
    known, position = opened.resume
    if offset <= opened.segment.start_offset:
        position = 0
    elif offset != known:
        _, position = opened.indexes.offsets.lookup(offset)
    log = opened.log
    while (batch := header_at(log, position)) is not None:
        if batch["last_offset"] >= offset:
            return position, int(batch["size_bytes"]), int(batch["base_offset"])
        position += int(batch["size_bytes"])
    return None


def _note_end(opened: _OpenSegment, records: bytes, position: int) -> None:
    """Note where the next read of a sequential reader begins."""
    with contextlib.suppress(CorruptRecordError, IllegalArgumentError):  # a reader of the records reports it
        for one in read_batches(records):
            position += one.size_bytes
            opened.resume = (one.last_offset + 1, position)


def _offset_behind(opened: _OpenSegment, position: int) -> int:
    """Return the offset of the first index entry at or behind a position, else the end of the segment."""
    index = opened.indexes.offsets
    entry = int(np.searchsorted(index.positions, position))
    return int(index.offsets[entry]) if entry < index.entries else opened.segment.end_offset + 1


def _first_record(opened: _OpenSegment, timestamp: int, log_start: int) -> RecordAtTime | None:
    _, offset = opened.indexes.times.lookup(timestamp)
    _, position = opened.indexes.offsets.lookup(max(offset, log_start))
    while (batch := header_at(opened.log, position)) is not None:
        size = int(batch["size_bytes"])
        if batch["max_timestamp"] >= timestamp:
            data = opened.log.read(position, size)
            one = next(read_batches(data))
            for record in read_records(data, one):
                if record.timestamp >= timestamp and record.offset >= log_start:
                    epoch = None if one.leader_epoch < 0 else one.leader_epoch
                    return RecordAtTime(record.offset, record.timestamp, epoch)
        position += size
    return None

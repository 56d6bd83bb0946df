"""The part of a live log that is only in its tier: what a read below the first local segment returns.

Segments are found by bisection in the state of the newest manifest. The indexes of the last segments stay in memory,
and their `.log` files stay open, so that a read begins with the bytes that the file has read ahead. A new state
replaces the old one as a whole.

Source: Kafka RemoteLogManager.read, RemoteLogManager.findOffsetByTimestamp.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import DataError, KafkaStorageError, StoreError
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
from cordwood.storage.log.segment import header_at
from cordwood.storage.tier.configured import LayoutKind
from cordwood.storage.tier.local import Layout
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.segments import RemoteSegment
from cordwood.storage.tier.store import Tier, TierStore

#: Number of segments whose indexes stay in memory, and whose `.log` stays open.
_KEPT = 16


@dataclass(slots=True)
class _Opened:
    """An open segment of the tier.

    Attributes:
        readers: number of reads in progress.
        is_dropped: the last reader closes the file.
    """

    log: ReadableFile
    offsets: OffsetIndex
    times: TimeIndex
    aborted: TransactionIndex
    readers: int = 0
    is_dropped: bool = False


#: Adds the aborted transactions that overlap offsets [start, end), from the segments on the disk.
CollectLocal = Callable[[int, int, list[AbortedTransaction]], None]


class RemoteTail:
    """Reads the segments that a state names.

    Attributes:
        state: the newest committed state; its owner replaces it.
        root: where the tier is.
        fetched_bytes, fetches, errors: sums since the log was opened.
    """

    def __init__(self, layout: Layout, root: str, state: TierState) -> None:
        self.state = state
        self.root = root
        self.fetched_bytes = self.fetches = self.errors = 0
        self._layout = layout
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    @property
    def copied_end(self) -> int:
        """The offset after the last one in the tier."""
        return self.state.copied_end

    def read(
        self, start: int, max_bytes: int, *, min_one_message: bool, collect_local: CollectLocal | None
    ) -> FetchData | None:
        """Read batches from an offset on, up to the end of one segment; None if the tier has none from there on.

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
            with self._opened_for(segment) as opened:
                found = _batch_ending_at(opened, start)
                if found is None:
                    continue
                position, size, first = found
                limit = max(max_bytes, size) if min_one_message else max_bytes
                records = opened.log.read(position, min(limit, opened.log.size() - position))
                end = _offset_behind(opened, position + len(records), segment)
            self.fetches += 1
            self.fetched_bytes += len(records)
            aborted = None if collect_local is None else self._aborted(start, end, at, collect_local)
            return FetchData(first, records, 0 < limit < size, aborted)
        return None

    def beside(self, fs: TargetStore, directory: str) -> TierStore:
        """Return a store that shows the log in a directory with its segments in the tier, as they are now."""
        return TierStore(fs, Tier(self.root, kind=LayoutKind.AIVEN), self._layout, states={directory: self.state})

    def segments_between(self, start: int, end: int) -> list[RemoteSegment]:
        """Return the segments that hold offsets from `start` on and begin below `end`."""
        return list(itertools.takewhile(lambda one: one.start_offset < end, (one for _, one in self._from(start))))

    def first_timestamp(self, segment: RemoteSegment) -> int:
        """Return the largest timestamp of the first batch of a segment.

        Raises:
            KafkaStorageError: the tier cannot be read.
        """
        try:
            with self._opened_for(segment) as opened:
                first = header_at(opened.log, 0)
        except (OSError, StoreError, DataError) as error:
            self.errors += 1
            raise KafkaStorageError(f"segment {segment.id} cannot be read from the tier: {error}") from error
        return NONE if first is None else int(first["max_timestamp"])

    def _from(self, offset: int) -> Iterator[tuple[int, RemoteSegment]]:
        """Yield the segments that hold an offset and later ones, each with its place."""
        segments = self.state.segments
        first = bisect_left(segments, offset, key=lambda one: one.segment.end_offset)
        for at in range(first, len(segments)):
            yield at, segments[at].segment

    def _aborted(self, start: int, end: int, at: int, collect_local: CollectLocal) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that overlap offsets [start, end); some may end in later segments."""
        found: list[AbortedTransaction] = []
        for one in self.state.segments[at:]:
            if not one.segment.transaction_index_empty:
                with self._opened_for(one.segment) as opened:
                    some, is_complete = opened.aborted.aborted(start, end)
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
        newer = (one for _, one in self._from(start) if one.max_timestamp_ms >= timestamp)
        segment = next(newer, None)
        if segment is None or segment.start_offset >= end:
            return None, False
        try:
            with self._opened_for(segment) as opened:
                return _first_record(opened, timestamp, start), True
        except (OSError, StoreError, DataError) as error:
            self.errors += 1
            raise KafkaStorageError(f"time {timestamp} cannot be looked up in the tier: {error}") from error

    @contextlib.contextmanager
    def _opened_for(self, segment: RemoteSegment) -> Iterator[_Opened]:
        with self._lock:
            opened = self._opened.get(segment.id)
            if opened is None:
                opened = self._opened[segment.id] = self._open(segment)
            self._opened.move_to_end(segment.id)
            opened.readers += 1
            while len(self._opened) > _KEPT:
                _, last = self._opened.popitem(last=False)
                self._drop(last)
        try:
            yield opened
        finally:
            with self._lock:
                opened.readers -= 1
                if opened.is_dropped:
                    self._drop(opened)

    @staticmethod
    def _drop(opened: _Opened) -> None:
        opened.is_dropped = True
        if not opened.readers:
            opened.log.close()

    def _open(self, segment: RemoteSegment) -> _Opened:
        def content(kind: FileKind) -> bytes:
            with self._layout.open(segment, kind) as file:
                return file.read(0, file.size())

        aborted = b"" if segment.transaction_index_empty else content(FileKind.TRANSACTION_INDEX)
        return _Opened(
            self._layout.open(segment, FileKind.LOG),
            offset_index.decode(content(FileKind.OFFSET_INDEX), segment.start_offset),
            time_index.decode(content(FileKind.TIME_INDEX), segment.start_offset),
            transaction_index.decode(aborted),
        )

    def close(self) -> None:
        """Close the open segments, once nobody reads them."""
        with self._lock:
            for one in self._opened.values():
                self._drop(one)
            self._opened.clear()


def _batch_ending_at(opened: _Opened, offset: int) -> tuple[int, int, int] | None:
    """Return position, size and base offset of the first batch that ends at or above an offset; None without one."""
    _, position = opened.offsets.lookup(offset)
    while (batch := header_at(opened.log, position)) is not None:
        if batch["last_offset"] >= offset:
            return position, int(batch["size_bytes"]), int(batch["base_offset"])
        position += int(batch["size_bytes"])
    return None


def _offset_behind(opened: _Opened, position: int, segment: RemoteSegment) -> int:
    """Return the offset of the first index entry at or behind a position, else the end of the segment."""
    entry = int(np.searchsorted(opened.offsets.positions, position))
    return int(opened.offsets.offsets[entry]) if entry < opened.offsets.entries else segment.end_offset + 1


def _first_record(opened: _Opened, timestamp: int, log_start: int) -> RecordAtTime | None:
    _, offset = opened.times.lookup(timestamp)
    _, position = opened.offsets.lookup(max(offset, log_start))
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

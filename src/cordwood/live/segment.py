"""One segment of a live log: a `.log` file that grows, and its indexes.

Only one thread at a time writes. Readers take no lock: they see the bytes up to `size_bytes`, which grows after the
bytes are written, and an open file stays the same file when it is renamed or removed. Files are opened by name when
they are first needed, under a lock that a rename acquires, too.

Source: Kafka LogSegment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from cordwood.common.errors import LogSegmentOffsetOverflowError
from cordwood.common.types import NONE, Clock
from cordwood.fs.base import Bytes, File
from cordwood.kernels.layout import (
    CODEC_MASK,
    HEADER,
    LAST_OFFSET_DELTA_AT,
    LEGACY_ATTRIBUTES_AT,
    LEGACY_TIMESTAMP_AT,
    MAGIC_AT,
    MAGIC_END,
    MAX_TIMESTAMP_AT,
    PREFIX,
    BatchRows,
)
from cordwood.live.environment import LogConfig, LogEnvironment
from cordwood.live.indexes import LiveOffsetIndex, LiveTimeIndex, LiveTransactionIndex
from cordwood.live.validation import read_batches, read_records
from cordwood.record.batch import Batch
from cordwood.record.columns import BatchWindow
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.log.segment import last_entry
from cordwood.storage.log.windows import MAX_OFFSETS, Checks, Gap, WindowReader, only_zeros, read_headers

#: Bytes that a search for a batch reads at once.
_SEARCH_BYTES = 16 << 10
_DELTA, _TIMESTAMP = Struct(">i"), Struct(">q")
_INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


class SegmentGoneError(Exception):
    """The files of a segment were removed during a read. The log has new segments by now: start the read again."""


class BatchPlace(NamedTuple):
    """Where a batch is in a segment.

    Attributes:
        base_offset: offset of the first record; NONE for a wrapper, whose header lacks it: see `first_offset`.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class LogSegment:
    """A segment, opened for reading and appending. Its indexes are opened when they are first needed.

    Attributes:
        base_offset: the offset in the names of its files.
        size_bytes: size of its batches; a preallocated file is longer.
    """

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        is_new: bool = False,
    ) -> None:
        """Open a segment.

        Args:
            config: configs of the topic; the segment keeps the interval and the size of its indexes.
            is_new: its files do not exist; with `preallocate` the new file gets its full size at once.
        """
        self.base_offset = base_offset
        self.directory = directory
        self._fs = fs = environment.fs
        self._clock = environment.clock
        self._index_interval_bytes = config.index_interval_bytes
        self._index_bytes = config.segment_index_bytes
        jitter = config.segment_jitter_ms
        self.roll_jitter_ms = environment.random.randrange(jitter) if jitter > 0 else 0
        self._suffix = Temporary.NONE
        path = self.path(FileKind.LOG)
        if is_new:
            self._file: File = fs.create(path, exclusive=False)
            if config.preallocate:
                self._file.truncate(config.segment_bytes)
            self.size_bytes = 0
        else:
            self._file = fs.open_for_update(path)
            self.size_bytes = self._file.size()
        self.created_ms = self._clock()
        self._bytes_since_index_entry = 0
        #: The largest timestamp, and the last offset of its batch; None: not read yet.
        self._largest: tuple[int, int] | None = None
        #: Whether a clean has written this segment since the log was loaded. Kafka's cleaner keeps its output's largest
        #: timestamp in memory; for a loaded segment, Kafka reads it from the time index when it is first needed.
        self.was_cleaned = False
        self._rolling_timestamp: int | None = None
        self._offset_index: LiveOffsetIndex | None = None
        self._time_index: LiveTimeIndex | None = None
        #: Held while files are opened by their names, renamed or removed.
        self._names = threading.RLock()
        self._is_gone = False
        self._transactions = LiveTransactionIndex(fs, self.path(FileKind.TRANSACTION_INDEX))

    def __repr__(self) -> str:
        return f"LogSegment({self.path(FileKind.LOG)!r}, {self.size_bytes} bytes)"

    # ---- files -------------------------------------------------------------------------------------------------------

    def path(self, kind: FileKind) -> str:
        """Return the path of one of its files, which may not exist."""
        return f"{self.directory}/{offset_name(self.base_offset, kind + self._suffix)}"

    def file_names(self) -> list[str]:
        """Return the names of its existing files."""
        paths = [self.path(kind) for kind in (FileKind.LOG, *_INDEX_KINDS)]
        return [path.rpartition("/")[2] for path in paths if self._fs.exists(path)]

    @property
    def offset_index(self) -> LiveOffsetIndex:
        """The offset index; a missing file is created."""
        if self._offset_index is None:
            with self._names:
                self._check_there()
                if self._offset_index is None:
                    path = self.path(FileKind.OFFSET_INDEX)
                    self._offset_index = LiveOffsetIndex(self._fs, path, self.base_offset, self._index_bytes)
        return self._offset_index

    def has_offset_index(self) -> bool:
        """Return whether the file of the offset index exists."""
        return self._fs.exists(self.path(FileKind.OFFSET_INDEX))

    def has_time_index(self) -> bool:
        """Return whether the file of the time index exists."""
        return self._fs.exists(self.path(FileKind.TIME_INDEX))

    @property
    def time_index(self) -> LiveTimeIndex:
        """The time index; a missing file is created."""
        if self._time_index is None:
            with self._names:
                self._check_there()
                if self._time_index is None:
                    path = self.path(FileKind.TIME_INDEX)
                    self._time_index = LiveTimeIndex(self._fs, path, self.base_offset, self._index_bytes)
        return self._time_index

    @property
    def transactions(self) -> LiveTransactionIndex:
        """The transaction index, with its entries read."""
        if not self._transactions.is_read:
            with self._names:
                self._check_there()
                self._transactions.entries()
        return self._transactions

    @property
    def has_full_index(self) -> bool:
        """Whether the offset index or the time index has no room for another entry."""
        return self.offset_index.is_full or self.time_index.is_full

    def _check_there(self) -> None:
        if self._is_gone:
            raise SegmentGoneError(self.path(FileKind.LOG))

    def resize_indexes(self, max_bytes: int) -> None:
        """Set the size of both indexes, in memory and on disk."""
        self._index_bytes = max_bytes
        self.offset_index.resize(max_bytes)
        self.time_index.resize(max_bytes)

    @property
    def last_modified_ms(self) -> int:
        """Modification time of the `.log` file."""
        return self._fs.stat(self.path(FileKind.LOG)).mtime_ns // 1_000_000

    @property
    def is_deleted(self) -> bool:
        """Whether its files are renamed and will be removed."""
        return self._suffix is Temporary.DELETED

    def change_suffix(self, suffix: Temporary) -> None:
        """Rename all files; missing index files are skipped."""
        with self._names:
            for kind in (FileKind.LOG, *_INDEX_KINDS):
                old = self.path(kind)
                new = f"{self.directory}/{offset_name(self.base_offset, kind + suffix)}"
                if self._fs.exists(old):
                    self._fs.rename(old, new)
            self.take_suffix(suffix)

    def take_suffix(self, suffix: Temporary) -> None:
        """Follow a rename of its files by a caller that holds `names`."""
        self._suffix = suffix
        self._transactions.path = self.path(FileKind.TRANSACTION_INDEX)

    def move_to(self, directory: str) -> None:
        """Follow a rename of the partition's directory by a caller that holds `names`."""
        self.directory = directory
        self._transactions.path = self.path(FileKind.TRANSACTION_INDEX)

    @property
    def names(self) -> threading.RLock:
        """The lock to hold while the files' names change."""
        return self._names

    def delete_files(self) -> None:
        """Remove all files, ignoring missing ones. Readers keep their open files; the last reader closes them."""
        with self._names:
            self._is_gone = True
            for kind in (FileKind.LOG, *_INDEX_KINDS):
                # The directory may have been renamed for its deletion, which removes all its files.
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(self.path(kind))

    def flush(self) -> bool:
        """Make the segment durable: the log, then its indexes; missing index files are created.

        Returns:
            whether the directory must be synced, because the transaction index was created since the last flush.
        """
        self._file.sync()
        self.offset_index.flush()
        self.time_index.flush()
        with self._names:
            return self._transactions.flush()

    def become_inactive(self) -> None:
        """End appends, because the log rolls: write the last time index entry, and cut spare room off the files."""
        self.time_index.maybe_append(*self.largest_timestamp_so_far, is_last=True)
        self.offset_index.trim()
        self.time_index.trim()
        self._trim_log()

    def close(self) -> bool:
        """Write the last time index entry, cut the indexes in use, and sync the files that no start rebuilds.

        Returns:
            as `flush`.
        """
        if self._largest is not None:
            self.time_index.maybe_append(*self._largest, is_last=True)
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.trim()
        self._trim_log()
        self._file.sync()
        with self._names:
            is_new = self._transactions.flush()
        self.close_handlers()
        return is_new

    def close_handlers(self) -> None:
        """Release all files, without writing anything."""
        self._file.close()
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()

    def _trim_log(self) -> None:
        if self._file.size() != self.size_bytes:
            self._file.truncate(self.size_bytes)

    # ---- appending ---------------------------------------------------------------------------------------------------

    def append(self, last_offset: int, data: Bytes, batches: Sequence[Batch]) -> None:
        """Append batches.

        Args:
            data: exactly the bytes of the batches.

        Raises:
            LogSegmentOffsetOverflowError: an offset is too far above the base; nothing was written.
        """
        if not batches:
            return
        if not self.fits(last_offset):
            raise LogSegmentOffsetOverflowError(
                f"Detected offset overflow at offset {last_offset} in segment {self.path(FileKind.LOG)}"
            )
        offset_index = self.offset_index  # a loader recovers a segment without an offset index
        position = self.size_bytes
        self._file.write(position, data)
        self.size_bytes = position + len(data)
        largest = self._largest or self.largest_timestamp_so_far
        for _, size_bytes, _, last_offset, _, max_timestamp, *_ in batches:
            if max_timestamp > largest[0]:
                self._largest = largest = (max_timestamp, last_offset)
            if self._bytes_since_index_entry > self._index_interval_bytes:
                offset_index.append(last_offset, position)
                self.time_index.maybe_append(*largest)
                self._bytes_since_index_entry = 0
            position += size_bytes
            self._bytes_since_index_entry += size_bytes

    def fits(self, offset: int) -> bool:
        """Return whether this segment can hold an offset."""
        return 0 <= offset - self.base_offset < MAX_OFFSETS

    @property
    def largest_timestamp_so_far(self) -> tuple[int, int]:
        """The largest timestamp, and the last offset of its batch; (NONE, base offset) without a timestamp."""
        if self._largest is None:
            self._largest = self._last_time_entry()
        return self._largest

    def _last_time_entry(self) -> tuple[int, int]:
        """Return the last entry of the time index; read little else of it, as retention needs it of each segment."""
        with self._names:
            self._check_there()
            path = self.path(FileKind.TIME_INDEX)
            if self._time_index is not None or not self._fs.exists(path):
                return self.time_index.last_entry
            _, entry = last_entry(self._fs, path, FileKind.TIME_INDEX)
        if entry is None:
            return NONE, self.base_offset
        return int(entry["timestamp"]), self.base_offset + int(entry["offset"])

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp; without any timestamp, the modification time of the file."""
        timestamp = self.largest_timestamp_so_far[0]
        return timestamp if timestamp >= 0 else self.last_modified_ms

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch; NONE without a batch."""
        if self._rolling_timestamp is None:
            first = next(self.places(0), None)
            if first is not None:
                self._rolling_timestamp = first.max_timestamp
        return NONE if self._rolling_timestamp is None else self._rolling_timestamp

    def waited_ms(self, clock: Clock, timestamp: int) -> int:
        """Return the age of the segment when it gets a record with this timestamp."""
        first = self.first_timestamp
        return timestamp - first if first >= 0 else clock() - self.created_ms

    # ---- reading -----------------------------------------------------------------------------------------------------

    def places(self, position: int) -> Iterator[BatchPlace]:
        """Yield the batches from a position on, read from their headers, up to the first partial batch."""
        end = self.size_bytes
        data, start = b"", position
        while end - position > MAGIC_END:
            at = position - start
            if len(data) - at < HEADER.size and start + len(data) < end:
                data, start, at = self._file.read(position, min(_SEARCH_BYTES, end - position)), position, 0
            if len(data) - at <= MAGIC_END:
                return
            offset, size = PREFIX.unpack_from(data, at)
            size += PREFIX.size
            magic = data[at + MAGIC_AT]
            if size > end - position or size < PREFIX.size + 14:
                return
            if magic >= 2:
                if len(data) - at < HEADER.size:
                    return
                delta = _DELTA.unpack_from(data, at + LAST_OFFSET_DELTA_AT)[0]
                timestamp = _TIMESTAMP.unpack_from(data, at + MAX_TIMESTAMP_AT)[0]
                yield BatchPlace(position, size, offset, offset + delta, timestamp)
            else:
                timestamp = _TIMESTAMP.unpack_from(data, at + LEGACY_TIMESTAMP_AT)[0] if magic == 1 else NONE
                is_wrapper = data[at + LEGACY_ATTRIBUTES_AT] & CODEC_MASK
                yield BatchPlace(position, size, NONE if is_wrapper else offset, offset, timestamp)
            position += size

    def find(self, offset: int) -> BatchPlace | None:
        """Return the batch that holds an offset, or the first batch after it.

        If a follower received overlapping batches, return the last one that begins at or below the offset.

        Source: Kafka FileRecords.searchForOffsetFromPosition.
        """
        before: BatchPlace | None = None
        for place in self.places(self.offset_index.lookup(offset)):
            first = self.first_offset(place)
            if first >= offset:
                return before if first > offset and before is not None and before.last_offset >= offset else place
            before = place
        return before if before is not None and before.last_offset >= offset else None

    def first_offset(self, place: BatchPlace) -> int:
        """Return the offset of a batch's first record; for a wrapper, read it from its messages."""
        if place.base_offset != NONE:
            return place.base_offset
        entry = self.read_bytes(place.position, place.size_bytes)
        return read_records(entry, next(read_batches(entry)))[0].offset

    def headers(self, start: int = 0, end: int | None = None) -> Iterator[BatchRows]:
        """Yield the headers of the batches from a position on, as rows, up to the first partial batch."""
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        for item in read_headers(self._file, base_offset=self.base_offset, start=start, end=end, search=False):
            if isinstance(item, Gap):
                return
            yield item

    def windows(self) -> Iterator[BatchWindow]:
        """Yield all batches with their bytes and computed checksums, up to the first partial batch."""
        reader = WindowReader(self._file, Checks.WHOLE, base_offset=self.base_offset, end=self.size_bytes, search=False)
        for item in reader:
            if isinstance(item, Gap):
                return
            yield item

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Read bytes of the log; fewer only at its end."""
        return self._file.read(position, min(size_bytes, self.size_bytes - position))

    def read_next_offset(self) -> int:
        """Return the offset after the last batch; the base offset of an empty segment."""
        position = self.offset_index.lookup(MAX_OFFSETS + self.base_offset)
        last = NONE
        for place in self.places(position):
            last = place.last_offset
        return self.base_offset if last == NONE else last + 1

    # ---- truncating --------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Remove the first batch that ends at or above an offset, and all batches after it.

        Returns:
            the number of bytes removed.
        """
        place = self.find(offset)
        if self.was_cleaned:
            _ = self.largest_timestamp_so_far
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transactions.truncate_to(offset)
        self.offset_index.resize(self._index_bytes)
        self.time_index.resize(self._index_bytes)
        removed = 0 if place is None else self.cut(place.position)
        if self.size_bytes == 0:
            self.created_ms = self._clock()
            self._rolling_timestamp = None
        self._bytes_since_index_entry = 0
        if self.largest_timestamp_so_far[0] >= 0:
            self._largest = self._read_largest_timestamp()
        return removed

    def cut(self, size_bytes: int) -> int:
        """Cut the `.log` file; return the number of bytes removed."""
        removed = self.size_bytes - size_bytes
        if removed:
            self._file.truncate(size_bytes)
            self.size_bytes = size_bytes
        return removed

    def has_only_zeros_from(self, position: int) -> bool:
        """Return whether no byte from a position on is set, as in a preallocated file."""
        return only_zeros(self._file, position, self.size_bytes)

    def _read_largest_timestamp(self) -> tuple[int, int]:
        largest = self.time_index.last_entry
        for place in self.places(self.offset_index.lookup(largest[1])):
            if place.max_timestamp > largest[0]:
                largest = (place.max_timestamp, place.last_offset)
        return largest

    def reset_indexes(self) -> None:
        """Drop all entries of all indexes before a recovery of the segment."""
        self.offset_index.reset(self._index_bytes)
        self.time_index.reset(self._index_bytes)
        self._transactions.reset()
        self._largest = (NONE, self.base_offset)

    def finish_recovery(self, largest: tuple[int, int], indexes: Mapping[FileKind, bytes]) -> None:
        """Write the rebuilt indexes, as files without spare room.

        Args:
            indexes: bytes of the offset index and of the time index, including the time index's last entry.
        """
        self._largest = largest
        self.offset_index.fill(indexes[FileKind.OFFSET_INDEX])
        self.time_index.fill(indexes[FileKind.TIME_INDEX])

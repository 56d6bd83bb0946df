"""The three indexes of a segment that is being written; their entries are in memory and in their files.

An offset or time index file has its full size from its creation, filled up with zeros, and is cut to its entries when
the segment is closed or a new one begins. Nothing is read or created before an index is needed. Some hundred entries
are written at a time, and all pending entries before the log counts as flushed. After a crash, recovery of the segment
rebuilds lost entries from the log.

Reads take no lock: an entry is complete before the number of entries includes it, and entries in use never move.
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from cordwood.common.errors import IllegalArgumentError, IllegalStateError, InvalidOffsetError, KafkaError
from cordwood.common.types import NONE, override
from cordwood.fs.base import File, LocalFileSystem
from cordwood.storage.formats import offset_index, time_index, transaction_index
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file
from cordwood.storage.log.windows import MAX_OFFSETS

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
#: Pending entries are written once they reach this size.
_PENDING_BYTES_MAX = 4_096
assert _OFFSET_ENTRY.size == offset_index.ENTRY.itemsize
assert _TIME_ENTRY.size == time_index.ENTRY.itemsize
assert array("q").itemsize == 8, "an entry's numbers have 64 bits"


class _IndexFile:
    """The common part of offset and time index: a file of a fixed size, filled from its start with pairs of numbers.

    Attributes:
        max_entries: largest number of entries that fits into the file.
    """

    def __init__(self, fs: LocalFileSystem, path: str, base_offset: int, max_bytes: int, entry: Struct) -> None:
        self.path = path
        self._base_offset = base_offset
        self._entry = entry
        #: The two numbers of each entry. An append extends the second array first; a truncation makes new arrays.
        self._columns = (array("q"), array("q"))
        #: Entries that are not in the file yet, encoded.
        self._pending = bytearray()
        #: Held while entries are added, dropped or written, as a flush holds no lock of the log.
        self._lock = threading.RLock()
        if fs.exists(path):
            data = read_file(fs, path)
            self._file: File = fs.open_for_update(path)
            self.max_entries = len(data) // entry.size
            self._columns = self._decode(data)
        else:
            if max_bytes < entry.size:
                raise IllegalArgumentError(f"{path}: an index of {max_bytes} bytes has no room for an entry")
            self._file = fs.create(path)
            self.max_entries = max_bytes // entry.size
            self._file.truncate(self.max_entries * entry.size)

    @abstractmethod
    def _decode(self, data: bytes) -> tuple[array[int], array[int]]:
        """Return the columns of an existing file."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return len(self._columns[0])

    @property
    def size_bytes(self) -> int:
        """Size of the entries in the file."""
        return self.entries * self._entry.size

    def _relative(self, offset: int) -> int:
        relative = offset - self._base_offset
        if not 0 <= relative < MAX_OFFSETS:
            raise KafkaError(f"Integer overflow for offset: {offset} ({self.path})")
        return relative

    def _append(self, first: int, second: int, *encoded: int) -> None:
        with self._lock:
            self._columns[1].append(second)
            self._columns[0].append(first)
            self._pending += self._entry.pack(*encoded)
            if len(self._pending) >= _PENDING_BYTES_MAX:
                self.write()

    def write(self) -> None:
        """Write the entries that are only in memory."""
        with self._lock:
            if self._pending:
                self._file.write(self.size_bytes - len(self._pending), self._pending)
                self._pending = bytearray()

    def _cut(self, entries: int) -> None:
        """Keep this number of entries and drop all later ones; the file keeps its size."""
        with self._lock:
            self.write()
            first, second = self._columns
            self._columns = first[:entries], second[:entries]

    def resize(self, max_bytes: int) -> None:
        """Change the size of the file; entries stay."""
        with self._lock:
            self.write()
            self.max_entries = max(max_bytes // self._entry.size, self.entries)
            # Dropped entries may still be in the file; truncating twice replaces them with zeros.
            self._file.truncate(self.entries * self._entry.size)
            self._file.truncate(self.max_entries * self._entry.size)

    def trim(self) -> None:
        """Cut the file to its entries."""
        self.resize(0)

    def fill(self, data: bytes) -> None:
        """Replace all entries with the entries of a file, without room for more."""
        with self._lock:
            self._pending = bytearray()
            self._columns = self._decode(data)
            self._file.truncate(0)
            self._file.write(0, data)
            self.max_entries = self.entries

    def reset(self, max_bytes: int) -> None:
        """Drop all entries, and give the file its full size."""
        self._cut(0)
        self.resize(max_bytes)

    def flush(self) -> None:
        """Make the entries durable."""
        self.write()
        self._file.sync()

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class LiveOffsetIndex(_IndexFile):
    """The offset index of a segment; see `storage.formats.offset_index`."""

    def __init__(self, fs: LocalFileSystem, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(fs, path, base_offset, max_bytes, _OFFSET_ENTRY)

    @override
    def _decode(self, data: bytes) -> tuple[array[int], array[int]]:
        index = offset_index.decode(data, self._base_offset)
        return array("q", index.offsets.tobytes()), array("q", index.positions.tobytes())

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return len(self._columns[0]) >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batch at a position ends with an offset."""
        offsets, _ = self._columns
        if self.is_full:
            raise IllegalArgumentError(f"Attempt to append to a full index (size = {self.entries}).")
        if offsets and offset <= offsets[-1]:
            raise InvalidOffsetError(
                f"Attempt to append an offset {offset} to position {self.entries} no larger than the last offset "
                f"appended ({offsets[-1]}) to {self.path}"
            )
        self._append(offset, position, self._relative(offset), position)

    def lookup(self, target: int) -> int:
        """Return the position of the last indexed batch at or before the batch that holds an offset."""
        offsets, positions = self._columns
        at = bisect_right(offsets, target)
        return positions[at - 1] if at else 0

    def offset_behind(self, position: int) -> int | None:
        """Return the offset of the first entry at or after a position; None without such an entry."""
        offsets, positions = self._columns
        at = bisect_left(positions, position)
        return offsets[at] if at < len(offsets) else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at an offset and above."""
        self._cut(bisect_left(self._columns[0], offset))

    def rows(self) -> list[tuple[int, int]]:
        """(offset, position) of each entry."""
        return list(zip(*self._columns, strict=False))


class LiveTimeIndex(_IndexFile):
    """The time index of a segment; see `storage.formats.time_index`."""

    def __init__(self, fs: LocalFileSystem, path: str, base_offset: int, max_bytes: int) -> None:
        super().__init__(fs, path, base_offset, max_bytes, _TIME_ENTRY)

    @override
    def _decode(self, data: bytes) -> tuple[array[int], array[int]]:
        index = time_index.decode(data, self._base_offset)
        return array("q", index.timestamps.tobytes()), array("q", index.offsets.tobytes())

    @property
    def is_full(self) -> bool:
        """Whether the only room left is reserved for the entry at the end of the segment."""
        return len(self._columns[0]) >= self.max_entries - 1

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (NONE, base offset) without one."""
        timestamps, offsets = self._columns
        return (timestamps[-1], offsets[-1]) if timestamps else (NONE, self._base_offset)

    def maybe_append(self, timestamp: int, offset: int, *, is_last: bool = False) -> None:
        """Add an entry if its timestamp is newer: the largest timestamp so far, and the last offset of its batch.

        Args:
            is_last: the segment ends here, so the reserved room may be used.
        """
        if not is_last and self.is_full:
            raise IllegalArgumentError(f"Attempt to append to a full time index (size = {self.entries}).")
        last_timestamp, last_offset = self.last_entry
        if self.entries and offset < last_offset:
            raise InvalidOffsetError(
                f"Attempt to append an offset ({offset}) to slot {self.entries} no larger than the last offset "
                f"appended ({last_offset}) to {self.path}"
            )
        if self.entries and timestamp < last_timestamp:
            raise IllegalStateError(
                f"Attempt to append a timestamp ({timestamp}) to slot {self.entries} no larger than the last "
                f"timestamp appended ({last_timestamp}) to {self.path}"
            )
        if timestamp > last_timestamp:
            self._append(timestamp, offset, timestamp, self._relative(offset))

    def lookup(self, timestamp: int) -> int:
        """Return the offset of the last entry at or below a timestamp; the base offset without one."""
        timestamps, offsets = self._columns
        at = bisect_right(timestamps, timestamp)
        return offsets[at - 1] if at else self._base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at an offset and above."""
        self._cut(bisect_left(self._columns[1], offset))

    def rows(self) -> list[tuple[int, int]]:
        """(timestamp, offset) of each entry."""
        return list(zip(*self._columns, strict=False))


class LiveTransactionIndex:
    """The aborted transactions whose markers are in a segment; see `storage.formats.transaction_index`.

    The file is created with the first entry.
    """

    def __init__(self, fs: LocalFileSystem, path: str) -> None:
        self.path = path
        self._fs = fs
        self._entries: list[AbortedTransaction] | None = None
        self._last_offset: int | None = None
        self._is_new = False

    @property
    def is_read(self) -> bool:
        """Whether the file was read; after that it is only written."""
        return self._entries is not None

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries, in the order of their markers."""
        if self._entries is None:
            found: list[AbortedTransaction] = []
            if self._fs.exists(self.path):
                found = list(transaction_index.decode(read_file(self._fs, self.path), self.path).transactions())
            self._entries = found
        return self._entries

    def append(self, transaction: AbortedTransaction) -> None:
        """Add an entry, whose marker must be after the markers of all entries so far."""
        if self._last_offset is not None and self._last_offset >= transaction.last_offset:
            raise IllegalArgumentError(
                f"The last offset of appended transactions must increase sequentially, but {transaction.last_offset} "
                f"is not greater than current last offset {self._last_offset} of index {self.path}"
            )
        entries = self.entries()
        data = transaction_index.encode(transaction_index.index_of([transaction]))
        exists = self._fs.exists(self.path)
        with self._fs.open_for_update(self.path) if exists else self._fs.create(self.path) as file:
            file.write(len(entries) * transaction_index.ENTRY.itemsize, data)
        self._is_new |= not exists
        entries.append(transaction)
        self._last_offset = transaction.last_offset

    def collect(self, start: int, end: int, found: list[AbortedTransaction]) -> bool:
        """Add transactions that overlap offsets [start, end) to `found`; return whether later segments can add none."""
        for one in self.entries():
            if one.last_offset >= start and one.first_offset < end:
                found.append(one)
            if one.last_stable_offset >= end:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drop the first entry whose marker is at or above an offset, and all entries after it."""
        entries = self.entries()
        keep = next((i for i, one in enumerate(entries) if one.last_offset >= offset), len(entries))
        if keep < len(entries):
            with self._fs.open_for_update(self.path) as file:
                file.truncate(keep * transaction_index.ENTRY.itemsize)
            self._entries = entries[:keep]
            self._last_offset = self._entries[-1].last_offset if self._entries else None

    def reset(self) -> None:
        """Drop all entries."""
        if self._fs.exists(self.path):
            with self._fs.open_for_update(self.path) as file:
                file.truncate(0)
        self._entries, self._last_offset = [], None

    def flush(self) -> bool:
        """Make the entries durable; return whether the file is new, so that its directory must be synced."""
        is_new, self._is_new = self._is_new, False
        if self._fs.exists(self.path):
            with self._fs.open(self.path) as file:
                file.sync()
        return is_new


assert sys.byteorder == "little", "arrays are made from numpy's bytes"

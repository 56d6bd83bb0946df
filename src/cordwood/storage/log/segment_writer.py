"""Write the files of a segment from its batches: `.log`, `.index`, `.timeindex` and `.txnindex`.

Index entries follow Kafka 4's rule: if more than `index.interval.bytes` were appended since the last entry, both
indexes get an entry before the next batch is appended. At the end the time index gets the largest timestamp, and all
files are synced. A loader sees no file until the caller renames them to their final names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cordwood.common.threads import in_parallel
from cordwood.common.types import NONE
from cordwood.fs.base import File, ReadableFile, TargetStore
from cordwood.fs.direct import Appender
from cordwood.kernels import Deferred
from cordwood.kernels.layout import BatchRows, U8Array
from cordwood.storage.formats import offset_index, time_index, transaction_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.windows import MAX_OFFSETS

if TYPE_CHECKING:
    from cordwood.kernels import encode
else:
    encode = Deferred("encode")

_FIRST_ROOM = 1024


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """Configs for the indexes of a segment.

    Attributes:
        interval_bytes: `index.interval.bytes`.
        size_bytes: `segment.index.bytes`, for each of the two indexes.
    """

    interval_bytes: int = 4096
    size_bytes: int = 10_485_760


def fitting(batches: BatchRows, base_offset: int) -> int:
    """Count the batches before the first one whose offsets do not fit 31 bits above the base of a segment."""
    fits = batches["last_offset"] - np.int64(base_offset) < MAX_OFFSETS
    return int(batches.size) if fits.all() else int(np.argmin(fits))


class SegmentIndexes:
    """The entries of a segment's offset and time index, built while its batches are added in order."""

    def __init__(self, base_offset: int, limits: IndexLimits) -> None:
        self._base_offset = base_offset
        self._limits = limits
        self._state = np.zeros(encode.INDEX_STATE, np.int64)
        self._state[[encode.MAX_TIMESTAMP, encode.MAX_TIMESTAMP_OFFSET, encode.LAST_TIMESTAMP]] = NONE
        self._index = np.empty((_FIRST_ROOM, 2), np.int64)
        self._time_index = np.empty((_FIRST_ROOM, 2), np.int64)

    def add(self, batches: BatchRows) -> int:
        """Add batches (BATCH_ROW[batches]). Return how many were added: fewer than given if an index is full."""
        need = int(self._state[encode.ENTRIES]) + int(batches.size)
        if need > len(self._index):
            self._index = np.resize(self._index, (2 * need, 2))
            self._time_index = np.resize(self._time_index, (2 * need, 2))
        return int(
            encode.index_batches(
                batches["size_bytes"],
                batches["last_offset"],
                batches["max_timestamp"],
                self._limits.interval_bytes,
                self._state,
                self._index,
                self._time_index,
                self._limits.size_bytes // offset_index.ENTRY.itemsize,
                self._limits.size_bytes // time_index.ENTRY.itemsize,
            )
        )

    def fit(self, batches: BatchRows) -> bool:
        """Add batches. Return False if not all of them fit the limits."""
        return fitting(batches, self._base_offset) == batches.size == self.add(batches)

    @property
    def largest_timestamp(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of its batch; (NONE, base offset) without any."""
        timestamp, offset = self._state[[encode.MAX_TIMESTAMP, encode.MAX_TIMESTAMP_OFFSET]].tolist()
        return (timestamp, offset) if timestamp > NONE else (NONE, self._base_offset)

    def files(self) -> dict[FileKind, bytes]:
        """Return the bytes of both files, once all batches are added."""
        state = self._state
        entries, times = int(state[encode.ENTRIES]), self._time_index[: state[encode.TIME_ENTRIES]]
        if state[encode.MAX_TIMESTAMP] > state[encode.LAST_TIMESTAMP]:
            times = np.vstack([times, state[[encode.MAX_TIMESTAMP, encode.MAX_TIMESTAMP_OFFSET]]])
        index = self._index[:entries]
        return {
            FileKind.OFFSET_INDEX: offset_index.encode(
                offset_index.OffsetIndex(self._base_offset, index[:, 0], index[:, 1], entries)
            ),
            FileKind.TIME_INDEX: time_index.encode(
                time_index.TimeIndex(self._base_offset, times[:, 0], times[:, 1], len(times))
            ),
        }


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of bytes in memory.

    Attributes:
        file: file that they were read from.
        data: uint8[bytes].
    """

    file: ReadableFile
    position: int
    data: U8Array

    def position_of(self, piece: U8Array) -> int | None:
        """Return the position of a piece of the bytes; None if the piece is from elsewhere."""
        start = piece.ctypes.data - self.data.ctypes.data
        return self.position + start if start >= 0 and start + piece.size <= self.data.size else None


class SegmentWriter:
    """A segment that is being written to a directory.

    Attributes:
        base_offset: offset in the names of its files.
        next_offset: offset after the last batch; the base offset of an empty segment.
    """

    def __init__(
        self,
        fs: TargetStore,
        directory: str,
        base_offset: int,
        limits: IndexLimits,
        *,
        suffix: str = "",
        mode: int = 0o666,
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self._fs = fs
        self._directory = directory
        self._suffix = suffix
        self._mode = mode
        self._indexes = SegmentIndexes(base_offset, limits)
        self._aborted: list[AbortedTransaction] = []
        self._log: File = fs.create(self.path(FileKind.LOG), exclusive=False, mode=mode)
        self._appender = Appender(self._log, will_sync=True)

    @property
    def size_bytes(self) -> int:
        """Size of the log so far."""
        return self._appender.position

    def path(self, kind: FileKind) -> str:
        """Return the path of one of its files."""
        return f"{self._directory}/{offset_name(self.base_offset, kind + self._suffix)}"

    def append(self, pieces: Sequence[U8Array], batches: BatchRows, origin: Origin | None = None) -> int:
        """Append batches.

        Args:
            pieces: their bytes, in order; a piece may hold several batches.
            batches: BATCH_ROW[batches].
            origin: source of unchanged pieces, if their blocks may be shared.

        Returns:
            number of appended batches: fewer than given if an index is full, or offsets are too far above the base.
        """
        batches = batches[: self.fitting(batches)]
        if not batches.size:
            return 0
        done = self._indexes.add(batches)
        left = int(batches["size_bytes"][:done].sum())
        for piece in pieces:
            self._append(piece[:left], origin)
            left -= min(left, piece.size)
        if done:
            self.next_offset = int(batches["last_offset"][done - 1]) + 1
        return done

    def _append(self, part: U8Array, origin: Origin | None) -> None:
        position = None if origin is None else origin.position_of(part)
        if origin is None or position is None:
            self._appender.append(part)
        elif part.size:
            self._appender.append_shared(part, origin.file, position)

    def flush(self) -> None:
        """Write all of the log and free the memory; append nothing afterwards."""
        self._appender.flush()

    def fitting(self, batches: BatchRows) -> int:
        """Count the batches before the first one whose offsets do not fit 31 bits above the base."""
        return fitting(batches, self.base_offset)

    def add_aborted(self, transactions: Sequence[AbortedTransaction]) -> None:
        """Add entries to the transaction index."""
        self._aborted += transactions

    def finish(self, *, mtime_ns: int | None = None) -> list[str]:
        """Write the indexes, set the modification time of all files, sync and close them. Return the paths.

        The transaction index keeps its time, as in Kafka.
        """
        self.flush()
        with ExitStack() as opened:
            files = [opened.enter_context(self._log)]
            files += [opened.enter_context(self._write(kind, data)) for kind, data in self._indexes.files().items()]
            if mtime_ns is not None:
                for file in files:
                    self._fs.set_mtime_ns(file.path, mtime_ns)
            if self._aborted:
                data = transaction_index.encode(transaction_index.index_of(self._aborted))
                files.append(opened.enter_context(self._write(FileKind.TRANSACTION_INDEX, data)))
            # Sync all files concurrently: they share one commit of the file system's journal. One after the other, each
            # would wait for a commit of its own.
            in_parallel(min(self._fs.concurrency, len(files)), lambda file: file.sync(), files)
        return [file.path for file in files]

    def close(self) -> None:
        """Abandon an unfinished segment; its log file stays."""
        self._log.close()

    def _write(self, kind: FileKind, data: bytes) -> File:
        file = self._fs.create(self.path(kind), exclusive=False, mode=self._mode)
        try:
            if data:
                file.write(0, data)
        except BaseException:
            file.close()
            raise
        return file

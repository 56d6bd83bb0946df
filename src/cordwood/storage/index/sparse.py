"""Reads only those blocks of a key index that a search needs, and verifies their checksums.

    header, block checksums, batches     read on opening, to decide whether the index is valid
    starts                               the blocks with the buckets of the keys
    tags, ordinals                       the blocks with the entries of these buckets

The arrays have their full size from the start. A block that was not read takes no memory, and no code uses its part of
the arrays.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import ReadableFile
from cordwood.storage.formats.key_index import (
    BLOCK_BYTES,
    HEADER,
    batch_faults,
    check_block,
    decode_blocks,
    decode_header,
    entry_faults,
    index_in,
)
from cordwood.storage.index.files import check_batches, check_identity
from cordwood.storage.index.probe import Candidates, U64Array, find, searches
from cordwood.storage.log.files import KEY_INDEX_BYTES_MAX
from cordwood.storage.log.segment import Segment

Int64Array = npt.NDArray[np.int64]


class SparseIndex:
    """The key index of a segment, open for reading.

    Attributes:
        index: the index. Its arrays of batches are complete; its arrays of keys only where `find` has loaded blocks.
    """

    def __init__(self, segment: Segment, log: ReadableFile) -> None:
        """Open the index of a segment, if it is valid.

        Args:
            log: the segment's `.log`.

        Raises:
            OSError: the index is missing or unreadable.
            CorruptFileError: it is torn, or does not match the segment.
        """
        self._log = log
        self._path = segment.key_index_path
        self._file = segment.fs.open(self._path)
        try:
            self._open()
            check_identity(self.index, segment, log, self._path)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        size = self._file.size()
        header = decode_header(self._file.read(0, HEADER.itemsize), self._path)
        if size != header.file_bytes or size > KEY_INDEX_BYTES_MAX:
            what = f"a key index of {size} bytes, but its header says {header.file_bytes}"
            raise CorruptFileError(what, path=self._path)
        self._checksums = decode_blocks(header, self._file.read(0, header.payload_start), self._path)
        self._is_loaded = np.zeros(header.blocks, np.bool_)
        self.index = index_in(header, np.empty(header.payload_bytes, np.uint8))
        self._load(np.arange(-(-header.batches_bytes // BLOCK_BYTES)))
        for fault in batch_faults(self.index):
            fault.path = self._path
            raise fault

    def find(self, hashes: U64Array) -> Candidates:
        """Find the records that may have one of the keys with these hashes, which are in ascending order.

        Raises:
            OSError: the index cannot be read.
            CorruptFileError: a needed block has a wrong checksum, or is inconsistent.
        """
        header, index = self.index.header, self.index
        if searches(index, hashes):
            starts, tags, ordinals = (
                array.ctypes.data - index.payload.ctypes.data for array in (index.starts, index.tags, index.ordinals)
            )
            buckets = (hashes >> np.uint64(64 - header.bits)).astype(np.int64)
            self._load(_blocks(starts + 4 * buckets, starts + 4 * (buckets + 2)))
            first, end = (index.starts[buckets + more].astype(np.int64) for more in (0, 1))
            if (end > header.entries).any():
                raise CorruptFileError("a key index whose buckets cannot be", path=self._path)
            self._load(_blocks(tags + 4 * first, tags + 4 * end))
            self._load(_blocks(ordinals + 4 * first, ordinals + 4 * end))
        else:
            self._load(np.arange(header.blocks))
            for fault in entry_faults(index):
                raise fault
        return find(index, hashes)

    def check_batches(self, batches: Int64Array) -> None:
        """Raise unless batches match the index; checks more than the samples on opening.

        Raises:
            CorruptFileError: a batch differs.
        """
        check_batches(self.index, batches, self._log, self._path)

    def _load(self, blocks: Int64Array) -> None:
        """Read blocks that are not loaded yet, adjacent ones with one read."""
        missing = blocks[~self._is_loaded[blocks]]
        if not missing.size:
            return
        header, payload = self.index.header, self.index.payload
        for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            first, start = int(run[0]), int(run[0]) * BLOCK_BYTES
            end = min(start + run.size * BLOCK_BYTES, payload.size)
            data = self._file.read(header.payload_start + start, end - start)
            for at in run.tolist():
                block = data[(at - first) * BLOCK_BYTES : (at - first + 1) * BLOCK_BYTES]
                check_block(header, self._checksums, at, block, self._path)
            payload[start:end] = np.frombuffer(data, np.uint8)
        self._is_loaded[missing] = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _blocks(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the blocks that hold any byte of the ranges [start, end), int64[blocks], ascending."""
    some = ends > starts
    first, last = starts[some] // BLOCK_BYTES, (ends[some] - 1) // BLOCK_BYTES
    between = [np.arange(low + 1, high) for low, high in zip(first, last, strict=True) if high - low > 1]
    return np.unique(np.concatenate([first, last, *between]))

"""Finds the records in a segment's key index that may have one of some keys.

A result names candidates. The caller reads the batches that hold them, and compares the bytes of the keys, or a 128-bit
hash with another secret than that of the index: anyone who can read the file has its secret, and can construct keys
that share a tag.

`SparseIndex` reads only the blocks of an index that a search needs, and verifies their checksums:

    header, block checksums, batches, identity    read on opening, to decide whether the index is valid
    starts                                        the blocks with the buckets of the keys
    tags                                          the blocks with the entries of these buckets
    ordinals                                      the blocks with the entries whose tags match

Entries are in the order of their hashes, so the first entries are a random sample of the keys. `sampled_hashes` reads
the blocks with their tags, and the batches only if the identity does not prove that the index is valid.

The arrays have their full size from the start. A block that was not read takes no memory, and no code uses its part of
the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import ReadableFile
from cordwood.kernels import key_index as kernel
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.layout import U8Array
from cordwood.record.columns import BatchWindow
from cordwood.storage.formats.key_index import (
    BLOCK_BYTES,
    TAG_BITS,
    Header,
    KeyIndex,
    batch_faults,
    check_block,
    decode_blocks,
    entry_faults,
    index_in,
)
from cordwood.storage.index.identity import check_batches, check_identity, is_same_log, read_header
from cordwood.storage.log.files import KEY_INDEX_BYTES_MAX
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import Checks, Gap, WindowReader, in_order

#: If the whole index is read, a filter by hash bits has at least 2^4 slots per key, so at most one in 16 other keys
#: passes by chance.
_FILTER_BITS = 4
_FILTER_BITS_MAX = 32

#: Maximum number of index entries in a sample: `_ENTRIES_MIN` and one more for each `_BYTES_PER_ENTRY` of the log.
_ENTRIES_MIN, _BYTES_PER_ENTRY = 1 << 18, 1 << 12
#: Maximum number of index entries that are held in memory.
ENTRIES_MAX = 1 << 22

U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The records of a segment that may have one of some keys.

    Attributes:
        bits: uint8, a bit per record.
        entries: number of index entries that matched.
    """

    bits: U8Array
    entries: int

    @property
    def ordinals(self) -> Int64Array:
        """int64[candidates], ascending."""
        some = np.flatnonzero(self.bits)
        found = np.unpackbits(self.bits[some], bitorder="little").reshape(-1, 8)
        return np.asarray((8 * some[:, np.newaxis] + np.arange(8))[found == 1])


def hash_of_keys(keys: Sequence[bytes], secret: bytes) -> U64Array:
    """Hash keys as in an index; return the distinct hashes, uint64[hashes], ascending."""
    return np.unique(hash_of_each(keys, secret))


def hash_of_each(keys: Sequence[bytes], secret: bytes) -> U64Array:
    """Hash keys as in an index; return the hash of each key, uint64[keys]."""
    sizes = np.array([len(key) for key in keys], np.int32)
    ends = np.cumsum(sizes, dtype=np.int64)
    data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
    hashes = np.empty((len(keys), 2), np.uint64)
    low, high = np.frombuffer(secret, np.uint64)
    starts = (ends - sizes).astype(np.int32)
    hash_keys(data.ctypes.data, starts, sizes, np.ones(len(keys), np.bool_), low, high, hashes)
    return np.asarray(hashes[:, 1])


def searches(index: KeyIndex, hashes: U64Array) -> bool:
    """Return whether `find` looks keys up one by one, which reads only their buckets."""
    return 2 * hashes.size < index.header.entries


def find(index: KeyIndex, hashes: U64Array) -> Candidates:
    """Find the records that may have one of the keys with these hashes.

    A few keys are looked up one by one. For at least half as many keys as the index has entries, reading the whole
    index is faster.

    Args:
        hashes: hashes of the keys, ascending.

    Raises:
        CorruptFileError: the index is inconsistent.
    """
    if searches(index, hashes):
        return _marked(index, _matches(index, hashes))
    header = index.header
    bits, known = _no_records(index), min(_FILTER_BITS_MAX, max(6, hashes.size.bit_length() + _FILTER_BITS))
    starts, tags, ordinals = (array.ctypes.data for array in (index.starts, index.tags, index.ordinals))
    words = np.zeros((1 << known) // 64, np.uint64)
    kernel.fill_filter(hashes, known, words)
    entries = kernel.stream(
        *(hashes, known, words, header.bits, header.entries),
        *(starts, tags, ordinals, header.records, bits),
    )
    return Candidates(bits, _sound(entries))


def _no_records(index: KeyIndex) -> U8Array:
    return np.zeros((index.header.records + 7) // 8, np.uint8)


def _matches(index: KeyIndex, hashes: U64Array) -> U32Array:
    """Return the entries with the tags of some keys, uint32[matches]."""
    header, room = index.header, hashes.size
    while True:
        matches = np.empty(room, np.uint32)
        starts, tags = index.starts.ctypes.data, index.tags.ctypes.data
        found = _sound(kernel.match(hashes, header.bits, header.entries, starts, tags, matches))
        if found <= room:
            return matches[:found]
        room = found  # several records of a key, or keys with the same tag


def _marked(index: KeyIndex, matches: U32Array) -> Candidates:
    """Return the records of some entries."""
    bits = _no_records(index)
    return Candidates(bits, _sound(kernel.mark(matches, index.ordinals.ctypes.data, index.header.records, bits)))


def _sound(entries: int) -> int:
    """Return the result of a kernel, or raise CorruptFileError."""
    if entries == kernel.BROKEN:
        raise CorruptFileError("a key index whose buckets or records cannot be")
    return int(entries)


def hashes_in(index: KeyIndex) -> U64Array:
    """Return the hash of each entry, uint64[entries], in the order of the index; bits that it lacks are zero."""
    hashes = np.empty(index.header.entries, np.uint64)
    kernel.restore(index.starts, index.tags, index.header.bits, hashes)
    return hashes


def entries_of_each(index: KeyIndex, hashes: U64Array) -> Int64Array:
    """Count the entries that match each hash, int64[hashes]; the index must be consistent."""
    bits = index.header.bits
    buckets = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    first, end = (index.starts[buckets + more].astype(np.int64) for more in (0, 1))
    sizes = end - first
    owners = np.repeat(np.arange(hashes.size), sizes)
    entries = np.arange(owners.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[owners]
    tags = (hashes >> np.uint64(32 - bits)).astype(np.uint32)
    return np.bincount(owners[index.tags[entries] == tags[owners]], minlength=hashes.size)


def batches_with(index: KeyIndex, ordinals: Int64Array) -> Int64Array:
    """Return the numbers of the batches that hold any of these records, int64[batches], ascending."""
    ends = np.cumsum(index.counts, dtype=np.int64)
    return np.unique(np.searchsorted(ends, ordinals, side="right"))


def windows_with(segment: Segment, index: KeyIndex, keys: Sequence[bytes]) -> Iterator[BatchWindow | Gap]:
    """Yield the batches that may have one of some keys, and all data that the index does not cover, in file order.

    Batches with a wrong checksum are included; `decode` reports them.
    """
    touched = batches_with(index, find(index, hash_of_keys(keys, index.header.secret)).ordinals)
    with segment.open() as file:
        yield from windows_of(segment, file, index, touched)


def windows_of(
    segment: Segment, file: ReadableFile, index: KeyIndex, batches: Int64Array
) -> Iterator[BatchWindow | Gap]:
    """Yield batches by their numbers in the index, and all data that the index does not cover, in file order."""
    ends = np.cumsum(index.lengths, dtype=np.int64)
    covered = index.header.covered_bytes
    ranges = [(int(ends[at]) - int(index.lengths[at]), int(ends[at])) for at in batches.tolist()]
    for start, end in (*ranges, (covered, None)):
        reader = WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, start=start, end=end)
        yield from in_order(iter(reader), segment.order(start))


class SparseIndex:
    """The key index of a segment, open for reading.

    Attributes:
        index: the index. Its arrays of batches are complete; its arrays of keys only where `find` has loaded blocks.
    """

    def __init__(self, segment: Segment, log: ReadableFile | None = None, *, needs_batches: bool = True) -> None:
        """Open the index of a segment, if it is valid.

        Args:
            log: the segment's `.log`, if its batches will be read: another file may get its name meanwhile.
            needs_batches: read the arrays of batches, even if the identity shows that the index is valid.

        Raises:
            OSError: the index is missing or unreadable.
            CorruptFileError: it is torn, or does not match the segment.
        """
        self._path = segment.key_index_path
        self._file = segment.fs.open(self._path)
        try:
            self._open()
            if needs_batches or not is_same_log(self.index.identity, segment):
                self._load_batches()
            check_identity(self.index, segment, self._path, log)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        size = self._file.size()
        header, identity = read_header(self._file)
        if size != header.file_bytes or size > KEY_INDEX_BYTES_MAX:
            what = f"a key index of {size} bytes, but its header says {header.file_bytes}"
            raise CorruptFileError(what, path=self._path)
        self._checksums = decode_blocks(header, self._file.read(0, header.payload_start), self._path)
        self._is_loaded = np.zeros(header.blocks, np.bool_)
        self.index = index_in(header, np.empty(header.payload_bytes, np.uint8), identity)

    def _load_batches(self) -> None:
        self._load(np.arange(-(-self.index.header.batches_bytes // BLOCK_BYTES)))
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
            matches = _matches(index, hashes)
            entries = matches.astype(np.int64)
            self._load(_blocks(ordinals + 4 * entries, ordinals + 4 * (entries + 1)))
            return _marked(index, matches)
        self._load(np.arange(header.blocks))
        for fault in entry_faults(index):
            raise fault
        return find(index, hashes)

    def hashes_below(self, limit_bits: int) -> U64Array:
        """Return the hashes that begin with `limit_bits` zeros, uint64[entries]; bits that the index lacks are zero.

        Raises:
            OSError: the index cannot be read.
            CorruptFileError: a needed block has a wrong checksum, or is inconsistent.
        """
        header, index = self.index.header, self.index
        starts_at, tags_at = (array.ctypes.data - index.payload.ctypes.data for array in (index.starts, index.tags))
        buckets = 1 << max(0, header.bits - limit_bits)
        self._load(_blocks(*(np.array([at]) for at in (starts_at, starts_at + 4 * (buckets + 1)))))
        starts = index.starts[: buckets + 1]
        end = int(starts[-1])
        if end > header.entries or (starts[1:] < starts[:-1]).any():
            raise CorruptFileError("a key index whose buckets cannot be", path=self._path)
        self._load(_blocks(*(np.array([at]) for at in (tags_at, tags_at + 4 * end))))
        hashes = np.empty(end, np.uint64)
        kernel.restore(starts, index.tags[:end], header.bits, hashes)
        return hashes if limit_bits <= header.bits else hashes[hashes >> np.uint64(64 - limit_bits) == 0]

    def check_batches(self, batches: Int64Array, log: ReadableFile) -> None:
        """Raise unless batches match the index; checks more than the samples on opening.

        Args:
            log: the segment's `.log`.

        Raises:
            CorruptFileError: a batch differs.
        """
        check_batches(self.index, batches, log, self._path)

    def _load(self, blocks: Int64Array) -> None:
        """Read blocks that are not loaded yet, adjacent ones with one read."""
        missing = blocks[~self._is_loaded[blocks]]
        if not missing.size:
            return
        header, payload = self.index.header, self.index.payload
        for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            start = int(run[0]) * BLOCK_BYTES
            end = min(start + run.size * BLOCK_BYTES, payload.size)
            # A block that is cut off has a wrong checksum.
            self._file.read_into(header.payload_start + start, memoryview(payload)[start:end])
            for at in run.tolist():
                block = payload[at * BLOCK_BYTES : min((at + 1) * BLOCK_BYTES, end)]
                check_block(header, self._checksums, at, block, self._path)
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


@dataclass(frozen=True, slots=True)
class SampledHashes:
    """The hashes of a sample of the keys of a segment, from its key index.

    Attributes:
        hashes: uint64[sampled entries], not in the order of the records.
        entries: number of entries of the index.
        covered_bytes: length of the covered part of the segment.
        bits: number of known upper bits of each hash.
        secret: the key of the hashes.
    """

    hashes: U64Array
    entries: int
    covered_bytes: int
    bits: int
    secret: bytes


def sampled_hashes(
    segments: Sequence[Segment], *, exact: bool = False
) -> tuple[list[SampledHashes | None], int] | None:
    """Read the same sample of keys from the key index of each segment.

    Args:
        exact: read as many entries as fit in memory.

    Returns:
        a sample for each segment, None without a valid index; and the number of leading zeros of all their hashes: one
        in 2^n keys is in the sample. None if no index is valid, or if their secrets differ.
    """
    headers = [_header(segment) for segment in segments]
    entries, size_bytes = (
        (0 if one is None else one.entries for one in headers),
        sum(one.size_bytes for one in segments),
    )
    most = ENTRIES_MAX if exact else min(_ENTRIES_MIN + size_bytes // _BYTES_PER_ENTRY, ENTRIES_MAX)
    limit_bits = (sum(entries) // most).bit_length()
    found: list[SampledHashes | None] = []
    for segment, header in zip(segments, headers, strict=True):
        try:
            found.append(None if header is None else _sample(segment, header, limit_bits))
        except (OSError, CorruptFileError):
            found.append(None)
    secrets = {one.secret for one in found if one is not None}
    return (found, limit_bits) if len(secrets) == 1 else None


def _header(segment: Segment) -> Header | None:
    if not segment.size_bytes:
        return None
    try:
        with segment.fs.open(segment.key_index_path) as file:
            return read_header(file)[0]
    except (OSError, CorruptFileError):
        return None


def _sample(segment: Segment, header: Header, limit_bits: int) -> SampledHashes:
    with SparseIndex(segment, needs_batches=False) as opened:
        hashes = opened.hashes_below(limit_bits)
    return SampledHashes(hashes, header.entries, header.covered_bytes, header.bits + TAG_BITS, header.secret)


def _blocks(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the blocks that hold any byte of the ranges [start, end), int64[blocks], ascending."""
    some = ends > starts
    first, behind = starts[some] // BLOCK_BYTES, (ends[some] - 1) // BLOCK_BYTES + 1
    count = int(behind.max(initial=0)) + 1
    begun, ended = np.bincount(first, minlength=count), np.bincount(behind, minlength=count)
    return np.flatnonzero(np.cumsum(begun - ended))

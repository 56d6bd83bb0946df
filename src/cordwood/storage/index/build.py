"""Builds key indexes: of a segment, of all segments of a partition, and of the copy of a partition.

    segment ──► windows ──► records of data batches ──► `Gatherer`: hashes and ordinals, 12 bytes per record
    a caller that has the keys ──► `IndexedKeys` ─────────────────►│
                                                            └─ finish ──► sorted by hash into the arrays of an index

An index covers a segment up to the first bytes that are not a valid batch; without a valid batch at the start there is
no index. All indexes of a partition have the same secret. Memory is bounded: at most 24 bytes per record. A
segment with more records than fit gets no index.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, DataError
from cordwood.common.text import Presentable
from cordwood.fs.base import LocalFileSystem, ReadableFile, TargetStore
from cordwood.kernels import key_index as kernel
from cordwood.kernels.layout import BATCH_ROW, CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchRows, has_flag, is_control
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats.filenames import FileKind, index_folder, key_index_name, parse_file, parse_key_index
from cordwood.storage.formats.key_index import (
    BITS_MAX,
    BITS_MIN,
    NO_HORIZON,
    Flag,
    Header,
    KeyIndex,
    crc_of_header,
    index_in,
    with_identity,
)
from cordwood.storage.index.files import create_index, indexes_in, read_index, remove_indexes, write_index
from cordwood.storage.index.identity import OutputComparison, in_copy, look, settle
from cordwood.storage.log.files import make_work_folder
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap

#: Memory per record while an index is sorted: its hash and ordinal, twice.
RECORD_BYTES = 24

#: Drop an index larger than a tenth of its segment: the records are so small that reading the segment is as fast.
SEGMENT_SHARE = 10
_SECRET_BYTES = 16

#: The fields that are kept of each added batch.
_BATCH = np.dtype([(name, BATCH_ROW[name]) for name in ("size_bytes", "last_offset", "crc")])

U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]


class TooManyRecordsError(Exception):
    """A segment has more records than the memory can hold."""


def build(
    segment: Segment, secret: bytes, memory_bytes: int, windows: Iterator[BatchWindow] | None = None
) -> KeyIndex | None:
    """Build the index of a segment.

    Args:
        secret: 16 bytes, the same for all segments of a log.
        memory_bytes: memory limit for the keys.
        windows: windows of the segment with verified checksums; if None, read the segment and verify checksums here.

    Returns:
        None if the segment has no valid batch at its start, or too many records.
    """
    gatherer = Gatherer(segment.base_offset, secret, memory_bytes // RECORD_BYTES)
    try:
        for window in _sound_windows(segment) if windows is None else windows:
            gatherer.add(window)
    except DataError:
        # The records of a batch cannot be decoded. An index of the batches before it would be of little use.
        return None
    except TooManyRecordsError:
        return None
    with segment.open() as file:
        return gatherer.finish(file)


def bucket_bits(entries: int) -> int:
    """Return the number of hash bits that select a bucket in an index with this many keys."""
    return max(BITS_MIN, min(BITS_MAX, (entries // 8).bit_length() - 1))


def fields_of(batches: BatchRows, kind: np.dtype[np.void]) -> BatchRows:
    """Copy only those fields of batches that the row type `kind` has."""
    rows = np.empty(batches.size, kind)
    for name in kind.names or ():
        rows[name] = batches[name]
    return rows


def is_worth_keeping(index: KeyIndex) -> bool:
    """Return whether an index is small compared with the bytes that it covers."""
    return SEGMENT_SHARE * index.header.file_bytes <= index.header.covered_bytes


def new_secret() -> bytes:
    """Make a secret for a log without indexes."""
    return secrets.token_bytes(_SECRET_BYTES)


def _sound_windows(segment: Segment) -> Iterator[BatchWindow]:
    """Yield the windows of a segment, up to the first gap or the first batch with a wrong checksum."""
    for item in segment.windows():
        if isinstance(item, Gap):
            return
        wrong = np.flatnonzero(~is_valid(item.batches))
        if wrong.size:
            yield BatchWindow(item.position, item.data, item.batches[: wrong[0]], item.read)
            return
        yield item


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """The keys of some records.

    Attributes:
        hashes: uint64[keys], upper halves of the hashes.
        ordinals: uint32[keys], ordinals of the records.
    """

    hashes: U64Array
    ordinals: U32Array


class Gatherer:
    """Collects the content of an index from the start of a segment, from windows or from known keys.

    Batches must be added in the order of the segment.
    """

    def __init__(self, base_offset: int, secret: bytes, records_max: int) -> None:
        self._base_offset = base_offset
        self._secret = secret
        self._records_max = records_max
        self._records = 0
        self._flags = Flag(0)
        self._horizon = NO_HORIZON
        self._batches: list[BatchRows] = []
        self._counts: list[npt.NDArray[np.int64]] = []
        self._keys: list[IndexedKeys] = []

    @property
    def records(self) -> int:
        """Number of added records."""
        return self._records

    def add(self, window: BatchWindow) -> None:
        """Add the next batches, which are valid.

        Raises:
            DataError: the records of a batch cannot be decoded.
            TooManyRecordsError: the records do not fit in memory.
        """
        batches = window.batches
        if not batches.size:
            return
        self._note(batches)
        data = ~is_control(batches) & (batches["record_count"] != 0)
        # The header of a compressed message set has no record count.
        counts = np.where(batches["record_count"] < 0, 0, batches["record_count"]).astype(np.int64)
        chosen = window if data.all() else BatchWindow(window.position, window.data, batches[data], window.read)
        done = np.zeros(batches.size, np.int64)
        for columns in decode(chosen) if chosen.batches.size else ():
            self._check_room(counts)
            at = np.searchsorted(batches["position"], columns.batches["position"])
            firsts = self._records + np.cumsum(counts) - counts
            ordinals = firsts[at] + done[at]
            self._gather(columns, ordinals)
            done[at] = ordinals - firsts[at]
            np.maximum(counts, done, out=counts)
        self._close(batches, counts)

    def take(self, batches: BatchRows, keys: Sequence[IndexedKeys]) -> None:
        """Add the next batches, of magic 2, whose keys are known. All their records have a key, except for markers.

        Args:
            batches: must have the fields of BATCH_ROW that `_note` and `finish` read.
            keys: keys of their records; ordinals count from the first added record.

        Raises:
            TooManyRecordsError: the records do not fit in memory.
        """
        self._note(batches)
        self._close(batches, batches["record_count"].astype(np.int64))
        self._keys += keys

    def _close(self, batches: BatchRows, counts: npt.NDArray[np.int64]) -> None:
        self._check_room(counts)
        self._records += int(counts.sum())
        self._batches.append(fields_of(batches, _BATCH))
        self._counts.append(counts)

    def _check_room(self, counts: npt.NDArray[np.int64]) -> None:
        if self._records + int(counts.sum()) > min(self._records_max, (1 << 32) - 1):
            raise TooManyRecordsError

    def _note(self, batches: BatchRows) -> None:
        """Note flags, delete horizons and other facts from batch headers."""
        horizons = batches["base_timestamp"][has_flag(batches, DELETE_HORIZON)]
        self._horizon = min(self._horizon, int(horizons.min(initial=NO_HORIZON)))
        for flag, is_present in (
            (Flag.CONTROL, has_flag(batches, CONTROL).any()),
            (Flag.TRANSACTIONAL, has_flag(batches, TRANSACTIONAL).any()),
            (Flag.EMPTY_BATCHES, (batches["record_count"] == 0).any()),
            (Flag.OLD_MAGIC, (batches["magic"] < 2).any()),
        ):
            self._flags |= flag if is_present else Flag(0)

    def _gather(self, columns: RecordColumns, next_ordinals: npt.NDArray[np.int64]) -> None:
        rows = columns.rows
        hashes = key_hashes(columns, rows["key_size"] >= 0, self._secret)
        taken, ordinals = np.empty(rows.size, np.uint64), np.empty(rows.size, np.uint32)
        horizon = has_flag(columns.batches, DELETE_HORIZON)
        count, keyless, tombstones = kernel.gather(rows, hashes, next_ordinals, horizon, taken, ordinals)
        self._flags |= (Flag.KEYLESS if keyless else Flag(0)) | (Flag.TOMBSTONES if tombstones else Flag(0))
        if count:
            self._keys.append(IndexedKeys(taken[:count], ordinals[:count]))

    def finish(self, file: ReadableFile) -> KeyIndex | None:
        """Return the index of all added batches, or None without any. Call this once, at the end.

        Args:
            file: the segment's `.log`.
        """
        if not self._batches:
            return None
        batches = np.concatenate(self._batches)
        entries = sum(keys.hashes.size for keys in self._keys)
        covered_bytes, last_bytes = int(batches["size_bytes"].sum()), int(batches["size_bytes"][-1])
        header = Header(
            self._secret,
            bits=bucket_bits(entries),
            flags=int(self._flags),
            base_offset=self._base_offset,
            next_offset=int(batches["last_offset"][-1]) + 1,
            covered_bytes=covered_bytes,
            delete_horizon_ms=self._horizon,
            batches=batches.size,
            records=self._records,
            entries=entries,
            last_header_crc=crc_of_header(file, covered_bytes - last_bytes, last_bytes),
        )
        if header.next_offset <= header.base_offset:
            return None  # some early clients left the offset of a compressed message set at 0
        index = index_in(header, np.empty(header.payload_bytes, np.uint8))
        index.lengths[:] = batches["size_bytes"]
        index.counts[:] = np.concatenate(self._counts)
        index.crcs[:] = batches["crc"]
        self._sort(index)
        return index

    def _sort(self, index: KeyIndex) -> None:
        """Fill the arrays of keys; free collected hashes as soon as they are sorted, to save memory."""
        bits, entries = index.header.bits, index.header.entries
        coarse_bits = min(kernel.COARSE_BITS, bits)
        shift = 64 - coarse_bits
        starts = np.zeros((1 << coarse_bits) + 1, np.int64)
        for keys in self._keys:
            kernel.count(keys.hashes, shift, starts[1:])
        np.cumsum(starts, out=starts)
        sorted_hashes, sorted_ordinals = np.empty(entries, np.uint64), np.empty(entries, np.uint32)
        ends = starts[:-1].copy()
        self._keys.reverse()
        while self._keys:
            keys = self._keys.pop()
            kernel.scatter(keys.hashes, keys.ordinals, shift, ends, sorted_hashes, sorted_ordinals)
        kernel.fill(sorted_hashes, sorted_ordinals, starts, coarse_bits, bits, index.starts, index.tags, index.ordinals)


# ---- partitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexedPartition:
    """The key indexes of a partition.

    Attributes:
        segments: number of segments that are not empty.
        indexed: number of segments that now have an index.
        made: number of indexes that this run built.
        removed: number of removed index files.
        size_bytes: size of all indexes.
        log_bytes: size of all segments.
    """

    path: str
    segments: int
    indexed: int
    made: int
    removed: int
    size_bytes: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class IndexResult(Presentable):
    """The result of `cordwood index`; `partitions` in the order of their paths."""

    partitions: tuple[IndexedPartition, ...]


def index_partition(
    fs: LocalFileSystem, log: LogView, memory_bytes: int, bytes_max: int | None = None
) -> IndexedPartition:
    """Build missing indexes, and remove indexes that are invalid or have no segment.

    Args:
        memory_bytes: memory limit for the keys of a segment.
        bytes_max: size limit for all indexes; the newest segments get none beyond it. Without it, only the limit of
            `is_worth_keeping` applies to each index.
    """
    segments = [segment for segment in log.segments if segment.size_bytes]
    before = {base_offset for base_offset, _ in indexes_in(fs, log.path, log.index_root)}
    headers = {each.base_offset: index.header for each in segments if (index := _valid_index(each)) is not None}
    secret = next((header.secret for header in headers.values()), None) or new_secret()
    indexed, made, left_bytes = set(), 0, 1 << 62 if bytes_max is None else bytes_max
    is_local = not log.fs.reads_by_request(log.path) and fs.network_kind(log.path) is None
    for segment in segments:
        header = headers.get(segment.base_offset)
        is_current = header is not None and header.secret == secret and header.covered_bytes == segment.size_bytes
        index = None if is_current else build_in_place(segment, secret, memory_bytes, is_local=is_local)
        if header is None or not is_current:
            header = None if index is None or not is_worth_keeping(index) else index.header
        if header is None:
            continue
        left_bytes -= header.file_bytes
        if left_bytes < 0:
            break
        indexed.add(segment.base_offset)
        if index is not None:
            write_index(fs, log.path, index, log.index_root)
            made += 1
    remove_indexes(fs, log.path, indexed, log.index_root)
    return _indexed(fs, log, len(indexed), made, len(before - indexed))


def build_in_place(segment: Segment, secret: bytes, memory_bytes: int, *, is_local: bool = True) -> KeyIndex | None:
    """Build an index with its segment's identity; it suits cleans with the default configs of offset and time index.

    Args:
        is_local: False on a network file system, where no identity counts.
    """
    identity = look(segment.fs, segment.directory, segment.base_offset, IndexLimits()) if is_local else None
    compared = OutputComparison(segment, IndexLimits())

    def windows() -> Iterator[BatchWindow]:
        for window in _sound_windows(segment):
            if window.batches.size:
                compared.add(window.batches)
            yield window
            del window  # free a large one before reading the next

    index, is_same = build(segment, secret, memory_bytes, windows()), False
    with contextlib.suppress(OSError):
        is_same = compared.ascends and compared.is_same()
    if identity is not None and not is_same:
        identity = replace(identity, interval_bytes=0, index_bytes=0)
    return None if index is None else with_identity(index, identity)


def _valid_index(segment: Segment) -> KeyIndex | None:
    try:
        return read_index(segment)
    except (OSError, CorruptFileError):
        return None


def drop_indexes(fs: LocalFileSystem, log: LogView) -> IndexedPartition:
    """Remove all indexes of a partition."""
    return _indexed(fs, log, 0, 0, remove_indexes(fs, log.path, root=log.index_root))


def _indexed(fs: LocalFileSystem, log: LogView, indexed: int, made: int, removed: int) -> IndexedPartition:
    return IndexedPartition(
        log.path,
        sum(segment.size_bytes > 0 for segment in log.segments),
        indexed,
        made,
        removed,
        sum(info.size_bytes for _, info in indexes_in(fs, log.path, log.index_root)),
        log.size_bytes,
    )


# ---- copies ----------------------------------------------------------------------------------------------------------


def bring_indexes(
    fs: TargetStore,
    source: LogView,
    target: str,
    made: Sequence[str] = (),
    replaced: Collection[int] = (),
    bytes_max: int | None = None,
) -> None:
    """Give an unpublished copy the key indexes of its segments.

    Args:
        source: the partition that was copied. Only its valid indexes are copied.
        target: the copy's directory, with all its segments.
        made: paths of indexes that were built from segments as they are now.
        replaced: base offsets of the source's segments that are not in the copy.
        bytes_max: size limit for all indexes; the newest segments get none beyond it. None for no limit.
    """
    paths = {parse_key_index(posixpath.basename(path)): path for path in made}
    has_some = {base_offset for base_offset, _ in indexes_in(source.fs, source.path, source.index_root)} - set(replaced)
    if not paths and not has_some:
        return
    shared = {one.base_offset: one for one in source.segments if one.base_offset not in replaced}
    segments = {base_offset: segment for base_offset, segment in shared.items() if base_offset in has_some}
    sizes = {
        file.offset: info.size_bytes
        for info in fs.list(target)
        if (file := parse_file(info.name)) is not None and file.kind is FileKind.LOG
    }
    taken, brought = 0, []
    for base_offset, size_bytes in sorted(sizes.items()):
        new = f"{index_folder(target)}/{key_index_name(base_offset)}"
        index = None
        if base_offset in paths:
            taken += fs.stat(paths[base_offset]).size_bytes
        elif base_offset in segments:
            index = _valid_index(segments[base_offset])
            if index is not None and index.header.covered_bytes > size_bytes:
                index = None  # a load cuts the segment within the index's range
            taken += 0 if index is None else index.header.file_bytes
        if bytes_max is not None and taken > bytes_max:
            break
        if base_offset in paths or index is not None:
            _make_folder(fs, target)
        if base_offset in paths:
            fs.rename(paths[base_offset], new)
        elif index is not None:
            seen = in_copy(index.identity, segments[base_offset], fs, target)
            if not _is_created(fs, new, with_identity(index, seen)):
                break
        if base_offset in paths or index is not None:
            brought.append(new)
    settle(fs, target, brought, shared)


def _make_folder(fs: TargetStore, target: str) -> None:
    folder = index_folder(target)
    if not fs.exists(folder):
        make_work_folder(fs, target)
        fs.make_directory(folder)


def _is_created(fs: TargetStore, path: str, index: KeyIndex) -> bool:
    """Write an index; on a full disk remove it and return False, as the copy does not need it."""
    try:
        create_index(fs, path, index)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(path)
        return False
    return True

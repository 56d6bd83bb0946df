"""Make key indexes of the segments that a clean leaves, for the next clean: see `storage.index`.

An index is made of each segment that is written, and of each unchanged segment that has none. It is stored beside the
outputs, synced, until its segment is in place. An output's keys are collected part by part, by source segment:

    pass 1 hashed all keys under the secret of the indexes: survivors of its chunks  ──┐
    pass 1 used the segment's key index, which has the hashes                          ├─► hashes of kept records,
    neither: the part of the output is read                                          ──┘   with their new ordinals

For each batch that it writes, pass 2 reports the source batch and the number of kept records. If all records that were
not superseded are kept, their hashes are known; if fewer are, as some were dropped for another reason, the part is
read.

With an index its segment's identity is kept, so that the next clean need not compare them (`storage.index.identity`).
An index that was valid without it, as after a restore, is written once more with it.

If memory or disk space does not suffice for an index, none is made; that only makes the next clean slower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from cordwood.cleaning.engine.blobs import LostSectionError
from cordwood.cleaning.engine.readahead import segment_windows_from
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, MemoryShare, NewestOffsets
from cordwood.cleaning.rules.superseded import UNREAD, ScannedKeys, SegmentOutcomes
from cordwood.common.errors import CorruptFileError, DataError
from cordwood.fs.base import ReadableFile, TargetStore
from cordwood.fs.workspace import remove_tree
from cordwood.kernels import key_index as kernel
from cordwood.kernels.layout import BATCH_ROW, BatchRows, is_control
from cordwood.storage.formats.filenames import key_index_name
from cordwood.storage.formats.key_index import BATCH_BYTES, Identity, KeyIndex, with_identity
from cordwood.storage.index.build import (
    RECORD_BYTES,
    SEGMENT_SHARE,
    Gatherer,
    IndexedKeys,
    TooManyRecordsError,
    U32Array,
    bucket_bits,
    build,
    fields_of,
    is_worth_keeping,
)
from cordwood.storage.index.files import create_index, has_index, read_index
from cordwood.storage.index.search import hashes_in
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader, read_headers

#: Memory for the keys of a segment if the clean has no limit.
_MEMORY_BYTES = 1 << 30
#: Memory per record: its hash and ordinal twice, while an index is sorted, and before that its entry in `_numbers`.
_RECORD_BYTES = 32
#: The batch fields in use. The position is the one in the source segment.
_FIELDS = ["position", "size_bytes", "last_offset", "base_timestamp", "record_count", "crc", "attributes", "magic"]
_ROW = np.dtype([(name, BATCH_ROW[name]) for name in _FIELDS])
#: `IndexedBatches` holds at least this many batches, however small they are; they take a few MB.
_FEW_BATCHES = 1 << 16


@dataclass(slots=True)
class IndexedBatches:
    """Batches written to an output, part by part.

    Attributes:
        parts: source segments, each with the batches written from it, in pieces.
    """

    parts: list[tuple[Segment, list[BatchRows]]] = field(default_factory=list)
    _batches: int = 0
    _bytes: int = 0
    _is_given_up: bool = False

    def add(self, segment: Segment, batches: BatchRows) -> None:
        """Record batches that were written; their positions are those in the source segment."""
        self._batches += batches.size
        self._bytes += int(batches["size_bytes"].sum())
        if self._is_given_up or not batches.size:
            return
        if self._batches > _FEW_BATCHES and SEGMENT_SHARE * BATCH_BYTES * self._batches > self._bytes:
            self.parts, self._is_given_up = [], True
            return
        if not self.parts or self.parts[-1][0] is not segment:
            self.parts.append((segment, []))
        self.parts[-1][1].append(fields_of(batches, _ROW))


class IndexMaker:
    """Makes the indexes of a clean in a new folder.

    Attributes:
        paths: paths of the indexes that were made; empty once one could not be written, as on a full disk.
    """

    def __init__(self, fs: TargetStore, folder: str, secret: bytes, memory: MemoryShare | None) -> None:
        self.paths: tuple[str, ...] = ()
        self._fs, self._folder, self._secret = fs, folder, secret
        self._records_max = (_MEMORY_BYTES if memory is None else memory.size_bytes) // _RECORD_BYTES
        self._is_full = False

    def of_output(
        self,
        path: str,
        base_offset: int,
        written: IndexedBatches,
        newest: NewestOffsets,
        identity: Identity | None = None,
    ) -> None:
        """Make the index of a written segment; `identity`: its files before they get their place."""

        def make() -> KeyIndex | None:
            with self._fs.open(path) as file:
                index = self._of_parts(file, base_offset, written, newest)
            return None if index is None else with_identity(index, identity)

        self._keep(make, base_offset)

    def of_kept(self, segment: Segment, newest: NewestOffsets, identity: Identity | None = None) -> None:
        """Make the index of an unchanged segment, unless it has a valid one.

        Args:
            identity: the segment's files before they were compared; None if that was not necessary.
        """
        outcomes = _outcomes(newest, segment)
        was_used = outcomes is None or was_found_by_index(newest, segment)
        is_there = was_used and has_index(segment, self._secret)
        if is_there and (identity is None or outcomes is None):
            return

        def make() -> KeyIndex | None:
            written = _batches_of(segment)
            if not written.parts:
                return None
            rows = np.concatenate(written.parts[0][1])
            # The keys are of the same batches as after the look.
            is_known = outcomes is not None and np.array_equal(rows["crc"], outcomes.crcs)
            seen = identity if is_known else None
            if is_there:
                return None if seen is None else _with_identity_if_same(read_index(segment), rows, seen)
            with segment.open() as file:
                index = self._of_parts(file, segment.base_offset, written, newest)
            return None if index is None else with_identity(index, seen)

        self._keep(make, segment.base_offset)

    def of_log(self, before: LogView, outputs: LogView, kept: Iterable[int]) -> None:
        """Make the indexes of all outputs, and of unchanged segments without one, by reading them."""
        stay = [one for one in before.segments if one.base_offset in kept and not has_index(one, self._secret)]
        for segment in [*outputs.segments, *stay]:

            def make(segment: Segment = segment) -> KeyIndex | None:
                # The clean has verified the checksums of unchanged segments, and has just written the others.
                windows = segment_windows_from(segment, 0, Checks.DEFERRED)
                return build(segment, self._secret, RECORD_BYTES * self._records_max, windows)

            self._keep(make, segment.base_offset)

    def _keep(self, make: Callable[[], KeyIndex | None], base_offset: int) -> None:
        if self._is_full:
            return
        try:
            index = make()
        except (DataError, TooManyRecordsError, OSError):
            # A batch whose records cannot be decoded; too many records; or the segment is missing.
            return
        if index is None or not is_worth_keeping(index):
            return
        path = f"{self._folder}/{key_index_name(base_offset)}"
        try:
            if not self.paths:
                self._fs.make_directory(self._folder)
            create_index(self._fs, path, index)
            self.paths += (path,)
        except OSError:
            self._is_full, self.paths = True, ()
            with contextlib.suppress(OSError):
                remove_tree(self._fs, self._folder)

    def _of_parts(
        self, file: ReadableFile, base_offset: int, written: IndexedBatches, newest: NewestOffsets
    ) -> KeyIndex | None:
        gatherer = Gatherer(base_offset, self._secret, self._records_max)
        parts = [(segment, np.concatenate(pieces)) for segment, pieces in written.parts]
        bits = bucket_bits(sum(int(rows["record_count"][~is_control(rows)].sum()) for _, rows in parts))
        start = 0
        for segment, rows in parts:
            end = start + int(rows["size_bytes"].sum())
            keys = self._known(segment, rows, newest, gatherer.records, bits)
            if keys is not None:
                gatherer.take(rows, keys)
            else:
                reader = WindowReader(file, Checks.DEFERRED, base_offset=base_offset, start=start, end=end)
                for window in reader:
                    if isinstance(window, Gap):
                        return None
                    gatherer.add(window)
            start = end
        return gatherer.finish(file)

    def _known(
        self, segment: Segment, rows: BatchRows, newest: NewestOffsets, first: int, bits: int
    ) -> list[IndexedKeys] | None:
        """Return the keys of the batches written from a segment, or None if they are unknown.

        Args:
            rows: the written batches.
            newest: result of pass 1.
            first: ordinal of the first record.
            bits: number of hash bits needed besides those of a tag.
        """
        outcomes, data = _outcomes(newest, segment), ~is_control(rows)
        numbers = None if outcomes is None else _numbers(outcomes, rows, data, first)
        if outcomes is None or numbers is None or first + int(rows["record_count"].sum()) > self._records_max:
            return None
        assert isinstance(newest, ScannedKeys), "it has outcomes"
        survivors, found = newest.survivors.get(segment.base_offset), []
        known: Iterator[IndexedKeys] | None = None
        if survivors is not None and newest.hash_secret == self._secret:
            known = (IndexedKeys(*piece) for piece in survivors())
        elif (outcomes.flags & UNREAD).any():
            known = _of_index(segment, outcomes, self._secret, bits)
        if known is None:
            return None
        try:
            for keys in known:
                found.append(_taken(keys, numbers))
        except LostSectionError:
            return None
        # Each kept record has a key, or pass 2 would have dropped it.
        return found if sum(keys.hashes.size for keys in found) == int(rows["record_count"][data].sum()) else None


def _batches_of(segment: Segment) -> IndexedBatches:
    """Return all batches of a segment; none if there is a gap, or too many."""
    found = IndexedBatches()
    with segment.open() as file:
        for item in read_headers(file, base_offset=segment.base_offset):
            if isinstance(item, Gap):
                return IndexedBatches()
            found.add(segment, item)
    return found


def _with_identity_if_same(index: KeyIndex, rows: BatchRows, identity: Identity) -> KeyIndex | None:
    same = all(
        np.array_equal(rows[name], numbers)
        for name, numbers in (("size_bytes", index.lengths), ("record_count", index.counts), ("crc", index.crcs))
    )
    return with_identity(index, identity) if same else None


def was_found_by_index(newest: NewestOffsets, segment: Segment) -> bool:
    """Return whether pass 1 used the key index of a segment."""
    outcomes = _outcomes(newest, segment)
    return outcomes is not None and bool((outcomes.flags & UNREAD).any())


def _outcomes(newest: NewestOffsets, segment: Segment) -> SegmentOutcomes | None:
    return newest.segments.get(segment.base_offset) if isinstance(newest, ScannedKeys) else None


def _numbers(outcomes: SegmentOutcomes, rows: BatchRows, data: BoolArray, first: int) -> U32Array | None:
    """uint32[records]: ordinals of a segment's records in the output, see `kernel.renumber`; None if unknown.

    Args:
        outcomes: result of pass 1 for the segment.
        rows: the batches written from it.
        data: bool[rows], batches other than markers.
        first: ordinal of their first record.
    """
    firsts = first + np.cumsum(rows["record_count"], dtype=np.int64) - rows["record_count"]
    at = np.searchsorted(outcomes.positions, rows["position"])
    left = outcomes.counts - outcomes.superseded
    counted = data & (rows["record_count"] > 0)
    if (left[at] != rows["record_count"])[counted].any():
        return None
    out_firsts: Int64Array = np.full(outcomes.positions.size, -1, np.int64)
    out_firsts[at[counted]] = firsts[counted]
    numbers = np.empty(8 * outcomes.bits.size, np.uint32)
    kernel.renumber(outcomes.bits, outcomes.first_ordinals, outcomes.counts, out_firsts, numbers)
    return numbers


def _of_index(segment: Segment, outcomes: SegmentOutcomes, secret: bytes, bits: int) -> Iterator[IndexedKeys] | None:
    """Return the keys in the segment's key index, if it is the index that pass 1 used for the whole segment."""
    try:
        index = read_index(segment)
    except (OSError, CorruptFileError):
        return None
    same = index.header.secret == secret and index.header.covered_bytes == segment.size_bytes
    same = same and np.array_equal(index.crcs, outcomes.crcs) and np.array_equal(index.counts, outcomes.counts)
    if not same or index.header.bits < bits:
        return None
    return iter([IndexedKeys(hashes_in(index), index.ordinals)])


def _taken(keys: IndexedKeys, numbers: U32Array) -> IndexedKeys:
    hashes, ordinals = np.empty(keys.hashes.size, np.uint64), np.empty(keys.hashes.size, np.uint32)
    taken = kernel.take(keys.hashes, keys.ordinals, numbers, hashes, ordinals)
    assert taken >= 0, "the records of a segment have numbers"
    return IndexedKeys(hashes[:taken], ordinals[:taken])

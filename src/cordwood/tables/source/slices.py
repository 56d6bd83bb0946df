"""Divide a read among tasks: ranges of offsets, each a range of bytes between two batches.

    a partition's offsets    [start ─────────────────────────────── end)
    maxRecordsPerPartition   [────────)[────────)[────────)[────────)      by offsets, as Kafka's source divides them
    minPartitions            [───)[───)[───)[───)[───)[───)[───)[───)      likewise
    segments, old ones out   [───)[───)           [───)[───)[───)[───)
    bytes                    [───)[───)           [─)[─)[───)[───)[───)    large ones cut, by the offset index
    keys                          [)                    [)  [─)            batches that may have them, by the key index
    packs                    └────────┘           └────┘└────────┘└───┘    small ones together

A slice holds the positions of its bytes, which are used only if the files still agree: a segment may be cleaned or
deleted before a task reads it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace

import numpy as np

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import ReadableFile
from cordwood.storage.formats import offset_index
from cordwood.storage.formats.key_index import KeyIndex
from cordwood.storage.formats.offset_index import OffsetIndex
from cordwood.storage.index.search import Int64Array, SparseIndex, batches_with, hash_of_keys
from cordwood.storage.log.healing import OtherReplica
from cordwood.storage.log.segment import MAX_OFFSET, Cut, Segment, cut_behind, cuts_between, first_cut, last_cut
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.tables.source.options import ReadOptions

#: The option that reads damaged batches from another replica, in errors.
HEAL = "heal=true"
#: Small slices are combined up to this size, so that reading them takes longer than starting a task. When a query's
#: limit stops a task, Spark also ends the task's worker, and starting a new worker takes seconds.
_PACK_BYTES_MAX = 32 << 20
#: Cost of a slice in addition to its bytes (listing, opening), expressed in bytes.
_SLICE_COST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of a partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets; a compacted log has fewer records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of one partition that a task reads. Plain values, to be pickled.

    Attributes:
        start_offset: the lowest offset.
        end_offset: the first offset behind the slice.
        start, end: cuts below and above it; None if the reader has to find them.
        to_end: the slice ends where the log does, so all bytes up to the log's end must be whole batches.
        aborted: by producer id, first offset and marker of each aborted transaction that may have records here.
        open: by producer id, the first offset of its open transaction.
        others: the other replicas of the partition.
    """

    path: str
    partition: TopicPartition
    start_offset: int
    end_offset: int
    size_bytes: int
    start: Cut | None = None
    end: Cut | None = None
    to_end: bool = False
    aborted: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    open: Mapping[int, int] = field(default_factory=dict)
    others: tuple[OtherReplica, ...] = ()


class TransactionsMet:
    """Finds the transactions that may have records in a slice of a log.

    Aborted transactions are sorted by the offsets of their markers. For each, `_lowest` holds the smallest first offset
    of it and all later ones, so a binary search also excludes transactions that begin above a slice.
    """

    def __init__(self, found: Transactions) -> None:
        """Sort the transactions."""
        rows = [(last, first, producer) for producer, some in found.aborted.items() for first, last in some]
        self._aborted = sorted(rows)
        self._lasts = np.array([row[0] for row in self._aborted], np.int64)
        firsts = np.array([row[1] for row in self._aborted], np.int64)
        self._lowest = np.minimum.accumulate(firsts[::-1])[::-1]
        self._open = dict(found.open)

    def added_to(self, slice_: Slice) -> Slice:
        """Return a copy of the slice with the aborted and open transactions that may have records in it."""
        low = int(np.searchsorted(self._lasts, slice_.start_offset, side="left"))
        high = int(np.searchsorted(self._lowest, slice_.end_offset, side="left"))
        met: dict[int, list[tuple[int, int]]] = {}
        for last, first, producer in self._aborted[low:high]:
            if first < slice_.end_offset:
                met.setdefault(producer, []).append((first, last))
        return replace(
            slice_, aborted=met, open={id: first for id, first in self._open.items() if first < slice_.end_offset}
        )


# ---- by offsets ------------------------------------------------------------------------------------------------------


def divide(ranges: Iterable[OffsetRange], options: ReadOptions) -> list[OffsetRange]:
    """Divide offset ranges as `maxRecordsPerPartition` and `minPartitions` require, and drop empty ranges.

    Source: Spark KafkaOffsetRangeCalculator.getRanges.
    """
    found = [one for one in ranges if one.size > 0]
    if (most := options.max_records_per_partition) is not None:
        found = [part for one in found for part in _parts(one, -(-one.size // most))]
    wanted = options.min_partitions
    if wanted is None or len(found) >= wanted:
        return found
    total = sum(one.size for one in found)
    # Small ranges stay whole; the larger ones are divided into the remaining number of parts.
    small = {one for one in found if _share(one.size, total, wanted) == 1}
    total -= sum(one.size for one in small)
    wanted = max(wanted - len(small), 1)
    return [part for one in found for part in _parts(one, 1 if one in small else _share(one.size, total, wanted))]


def _share(size: int, total: int, wanted: int) -> int:
    # Half up, as Java rounds.
    return max(int(size / total * wanted + 0.5), 1)


def _parts(range_: OffsetRange, count: int) -> Iterator[OffsetRange]:
    start = range_.start
    for part in range(count):
        # The last parts get the remainder.
        end = start + (range_.end - start) // (count - part)
        if end > start:
            yield OffsetRange(range_.partition, start, end)
        start = end


# ---- by bytes --------------------------------------------------------------------------------------------------------


class Slicer:
    """Divides one log into slices."""

    def __init__(
        self,
        log: LogView,
        partition: TopicPartition,
        options: ReadOptions,
        oldest_ms: int | None,
        near: Cut | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        """Find the segments that may hold records of the wanted time.

        Args:
            oldest_ms: skip older records; None for records of any age.
            near: a cut a little before the first range, which saves an index lookup.
            keys: skip records with other keys; None for records with any key.
        """
        self._log = log
        self._partition = partition
        self._options = options
        self._near = near
        # A user who sets the number of tasks gets that number, with tasks of about one size: no key ranges.
        counts_tasks = options.min_partitions is not None or options.max_records_per_partition is not None
        self._keys = keys if options.use_indexes and not counts_tasks else None
        if oldest_ms is None or not options.use_indexes:
            self._lowest = {segment.base_offset: segment.base_offset for segment in log.segments}
        else:
            self._lowest = {segment.base_offset: offset for segment, offset in log.segments_since(oldest_ms)}
        self._indexes: dict[int, OffsetIndex] = {}

    def slices(self, wanted: OffsetRange, *, end: Cut | None, to_end: bool) -> list[Slice]:
        """Return the slices of a range of offsets.

        Args:
            end: the cut at the log's end, if the range ends there and the cut is known.
            to_end: the range ends where the log does.
        """
        parts = [one for segment, behind in self._segments(wanted) for one in self._cut(segment, behind, wanted, end)]
        merged: list[Slice] = []
        for one in parts:
            before = merged[-1] if merged else None
            if (
                before is not None
                and before.end_offset == one.start_offset
                and before.size_bytes + one.size_bytes <= self._options.max_bytes_per_partition
            ):
                merged[-1] = replace(
                    before, end_offset=one.end_offset, end=one.end, size_bytes=before.size_bytes + one.size_bytes
                )
            else:
                merged.append(one)
        if merged and to_end:
            merged[-1] = replace(merged[-1], to_end=merged[-1].end_offset >= wanted.end)
        return merged

    def counts(self, slices: Sequence[Slice]) -> ReadCounts:
        """Count the segments that these slices touch, and the segments and bytes that they skip."""
        touched: set[int] = set()
        bases = [segment.base_offset for segment in self._log.segments]
        for one in slices:
            first = max(0, bisect.bisect_right(bases, one.start_offset) - 1)
            touched.update(range(first, bisect.bisect_left(bases, one.end_offset)))
        read = sum(one.size_bytes for one in slices)
        return ReadCounts(
            segments=len(touched),
            segments_skipped=len(self._log.segments) - len(touched),
            bytes_skipped=max(0, self._log.size_bytes - read),
        )

    def _segments(self, wanted: OffsetRange) -> Iterator[tuple[Segment, int]]:
        """Yield the segments with wanted records, each with the base offset of the next segment."""
        following = [*(one.base_offset for one in self._log.segments[1:]), MAX_OFFSET]
        for segment, behind in zip(self._log.segments, following, strict=True):
            if segment.base_offset < wanted.end and behind > wanted.start and segment.base_offset in self._lowest:
                yield segment, behind

    def _cut(self, segment: Segment, behind: int, wanted: OffsetRange, log_end: Cut | None) -> Iterator[Slice]:
        """Divide the wanted part of a segment into slices of about `maxBytesPerPartition`."""
        start_offset = max(wanted.start, self._lowest[segment.base_offset])
        end_offset = min(wanted.end, behind)
        if start_offset >= end_offset:
            return
        ranges = None if self._keys is None else _ranges_with(segment, self._keys)
        if ranges is not None:
            wanted = replace(wanted, start=start_offset, end=end_offset)
            yield from (one for low, high in ranges for one in self._between(low, high, wanted, segment))
            return
        starts_inside, ends_inside = start_offset > segment.base_offset, end_offset < behind
        most = self._options.max_bytes_per_partition
        if not (starts_inside or ends_inside or segment.size_bytes > most * 3 // 2):
            yield self._slice(start_offset, end_offset, None, None, segment.size_bytes)
            return
        with segment.open() as file:
            start = Cut(segment.base_offset, 0, start_offset)
            if starts_inside and self._is_near(segment, start_offset):
                start = self._near or start
            elif starts_inside:
                start = last_cut(file, self._index(segment), start_offset)
            end = log_end
            if ends_inside and (end is None or end.segment != segment.base_offset or end.offset > end_offset):
                end = first_cut(file, self._index(segment), end_offset)
            if end is None and behind < MAX_OFFSET:
                end = Cut(segment.base_offset, segment.size_bytes, behind)
            end_position = segment.size_bytes if end is None else end.position
            cuts = [start]
            if end_position - start.position > most * 3 // 2:
                found = cuts_between(file, self._index(segment), start.position, end_position, most)
                cuts += (cut for cut in found if start_offset < cut.offset < end_offset)
        offsets = [start_offset, *(cut.offset for cut in cuts[1:]), end_offset]
        positions = [*(cut.position for cut in cuts), end_position]
        ends = [*cuts[1:], end]
        for at, cut in enumerate(cuts):
            size = positions[at + 1] - positions[at]
            yield self._slice(offsets[at], offsets[at + 1], cut, ends[at], size)

    def _between(self, low: Cut, high: Cut | None, wanted: OffsetRange, segment: Segment) -> Iterator[Slice]:
        """Yield the wanted part of a range, if any; a range without an upper cut ends with the segment."""
        start = max(wanted.start, low.offset)
        end = wanted.end if high is None else min(wanted.end, high.offset)
        if start < end:
            end_position = segment.size_bytes if high is None else high.position
            yield self._slice(start, end, low, high, end_position - low.position)

    def _is_near(self, segment: Segment, offset: int) -> bool:
        near = self._near
        return near is not None and near.segment == segment.base_offset and near.offset <= offset

    def _slice(self, start: int, end: int, start_cut: Cut | None, end_cut: Cut | None, size_bytes: int) -> Slice:
        return Slice(self._log.path, self._partition, start, end, max(0, size_bytes), start_cut, end_cut)

    def _index(self, segment: Segment) -> OffsetIndex:
        """Return the segment's offset index, or an empty one if it is missing, faulty or not to be used."""
        if segment.base_offset not in self._indexes:
            index = None
            if self._options.use_indexes:
                try:
                    index = segment.offset_index()
                except OSError:
                    index = None
            if index is None or any(offset_index.faults(index)):
                index = offset_index.decode(b"", segment.base_offset)
            self._indexes[segment.base_offset] = index
        return self._indexes[segment.base_offset]


# ---- for tasks -------------------------------------------------------------------------------------------------------


def pack(slices: Sequence[Slice], options: ReadOptions) -> list[tuple[Slice, ...]]:
    """Group slices into tasks, in order. Small slices share a task, unless options set the number of tasks."""
    if options.min_partitions is not None or options.max_records_per_partition is not None:
        return [(one,) for one in slices]
    packs: list[list[Slice]] = []
    size, most = 0, min(_PACK_BYTES_MAX, options.max_bytes_per_partition)
    for one in slices:
        cost = one.size_bytes + _SLICE_COST_BYTES
        if packs and size + cost <= most:
            packs[-1].append(one)
            size += cost
        else:
            packs.append([one])
            size = cost
    return [tuple(some) for some in packs]


# ---- by key indexes --------------------------------------------------------------------------------------------------

#     key index     ░░█░░░░░░░░█░█░░░░░░░░░░░░│▒▒▒▒▒   batches that may have a key, the part that the index lacks
#     ranges          [)       [  )            [    )   neighbours together, a cut at either end
#
# As with any index, bytes outside of these ranges are not read, so damage there is not noticed.

#: Batches with a smaller gap between them are read together with the gap.
GAP_BYTES = 64 << 10
#: Above this share of a segment's bytes, or with more ranges, reading all of it in order is faster.
_SHARE_MAX, _RANGES_MAX = 0.25, 64


def _ranges_with(segment: Segment, keys: Sequence[bytes]) -> list[tuple[Cut, Cut | None]] | None:
    """Return the ranges of a segment that contain all records with any of these keys.

    A range whose end is None reaches to the segment's end. Return None if the segment has no usable index, so that any
    record may have one of the keys; or if reading the whole segment is faster.
    """
    try:
        with segment.open() as file, SparseIndex(segment, file) as opened:
            index = opened.index
            touched = batches_with(index, opened.find(hash_of_keys(keys, index.header.secret)).ordinals)
            ends = np.cumsum(index.lengths, dtype=np.int64)
            starts = ends - index.lengths
            gaps = np.flatnonzero(starts[touched[1:]] - ends[touched[:-1]] > GAP_BYTES) + 1
            runs = np.split(touched, gaps) if touched.size else []
            size_bytes = sum(int(ends[run[-1]] - starts[run[0]]) for run in runs)
            if len(runs) > _RANGES_MAX or size_bytes > max(_SHARE_MAX * segment.size_bytes, GAP_BYTES):
                return None
            opened.check_batches(touched, file)
            return list(_cuts_around(runs, starts, file, index, segment))
    except (OSError, CorruptFileError):
        return None


def _cuts_around(
    runs: Sequence[Int64Array], starts: Int64Array, file: ReadableFile, index: KeyIndex, segment: Segment
) -> Iterator[tuple[Cut, Cut | None]]:
    def behind(batch: int) -> Cut:
        cut = cut_behind(file, segment.base_offset, int(starts[batch])) if batch >= 0 else start
        if cut is None:
            raise CorruptFileError("the batches of a segment are not in order", path=segment.path)
        return cut

    start = Cut(segment.base_offset, 0, segment.base_offset)
    for run in runs:
        yield behind(int(run[0]) - 1), behind(int(run[-1]))
    if index.header.covered_bytes < segment.size_bytes:
        yield behind(index.header.batches - 1), None


# ---- counts ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReadCounts:
    """Counts of one read, or of several together.

    Attributes:
        bytes_read: bytes of all files, to plan and to read.
        segments: segments that were read at least in part.
        segments_skipped: segments of the same partitions whose `.log` was not opened.
        bytes_skipped: bytes of `.log` files, in skipped segments and in skipped parts of other segments.
        batches_skipped: batches that were read but not decoded: too old, aborted, or without records.
        records_skipped: records that were decoded, but whose keys and values were not copied.
        damaged: damaged places that were skipped (`failOnDamage` is `false`).
        offsets_lost: requested offsets that were missing (`failOnDataLoss` is `false`).
        batches_healed: damaged batches that were read from another replica (`heal` is `true`).
    """

    records: int = 0
    bytes_read: int = 0
    segments: int = 0
    segments_skipped: int = 0
    bytes_skipped: int = 0
    batches: int = 0
    batches_skipped: int = 0
    records_skipped: int = 0
    damaged: int = 0
    offsets_lost: int = 0
    batches_healed: int = 0

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(self._parts()) or "nothing"

    def _parts(self) -> Iterator[str]:
        for one in fields(self):
            if count := getattr(self, one.name):
                yield f"{one.name.replace('_', ' ')}: {count:,}"

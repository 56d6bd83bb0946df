"""Small segments that follow each other, read as one segment.

A window costs about a millisecond of calls whatever its size, so a log of thousands of small segments would take
seconds. Segments of one group therefore share windows. Their records get the same decisions in the same order; counts
are split by segment again (`part_numbers`).

Segments are joined only where nothing depends on where one ends: without transaction indexes, whose entries are looked
up per segment, and without key indexes, which name positions in a segment. A joined file checks that a batch starts
where each of its segments does, and that all offsets belong there. If not, or if any batch is damaged, the caller reads
each segment by itself, for the same result and for errors with the right place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cordwood.cleaning.key_table import Int64Array
from cordwood.engine.keys import DirtySection
from cordwood.engine.readahead import SMALL_WINDOW_BYTES
from cordwood.errors import CorruptBatchError
from cordwood.fs.base import ReadableFile
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, MIN_ENTRY_BYTES
from cordwood.storage.log.recovery import SegmentFiles
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.types import override


@dataclass(frozen=True, slots=True)
class JoinedSegment(Segment):
    """Segments as one, with the name and mode of the first and the modification time of the last; without indexes."""

    parts: tuple[Segment, ...] = ()

    @override
    def open(self) -> ReadableFile:
        return _JoinedFile(self)


class _JoinedFile(ReadableFile):
    """The bytes of joined segments, in memory."""

    def __init__(self, segment: JoinedSegment) -> None:
        self.path = segment.path
        self._data = np.empty(segment.size_bytes, np.uint8)
        view, at = memoryview(self._data), 0
        for part in segment.parts:
            with part.open() as file:
                count = file.read_into(0, view[at : at + part.size_bytes])
            if count < part.size_bytes:
                raise CorruptBatchError("the file is shorter than it was a moment ago", path=part.path, position=count)
            at += count
        self._check(segment)

    def _check(self, segment: JoinedSegment) -> None:
        """Raise CorruptBatchError unless each segment has batches of its own offsets, and none of an old format."""
        data = self._data
        rows = np.empty(data.size // MIN_ENTRY_BYTES[0] + 1, BATCH_ROW)
        count, consumed, _ = scan.scan_batches(data.ctypes.data, data.size, data.size, 0, True, rows)
        rows = rows[:count]
        parts = part_numbers(segment, rows["position"])
        bases = np.array([part.base_offset for part in segment.parts])
        following = segment.following
        ends = np.append(bases[1:], MAX_OFFSET if following is None else following.base_offset)
        is_sound = consumed == data.size and np.isin(_starts(segment), rows["position"]).all()
        if is_sound:
            belongs = (rows["base_offset"] >= bases[parts]) & (rows["last_offset"] < ends[parts])
            is_sound = (belongs & (rows["magic"] == 2)).all()
        if not is_sound:
            raise CorruptBatchError("these segments cannot be read as one", path=self.path)

    @override
    def size(self) -> int:
        return self._data.size

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self._data[position : position + len(target)]
        target[: data.size] = data.data
        return data.size

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes].tobytes()

    @override
    def close(self) -> None:
        pass


def parts_of(segment: Segment) -> tuple[Segment, ...]:
    """Return the segments that were joined; the segment itself if it is not joined."""
    return segment.parts if isinstance(segment, JoinedSegment) else (segment,)


def part_numbers(segment: Segment, positions: Int64Array) -> Int64Array:
    """Return the index in `parts_of` of the segment that holds each position."""
    return np.searchsorted(_starts(segment), positions, side="right") - 1


def _starts(segment: Segment) -> Int64Array:
    """Positions of the parts."""
    sizes = [part.size_bytes for part in parts_of(segment)]
    return np.cumsum([0, *sizes[:-1]])


def join(groups: Sequence[Sequence[Segment]], dirty: DirtySection) -> tuple[list[list[Segment]], DirtySection]:
    """Join the small segments of each group, and those of the dirty section behind the groups.

    A join never extends over the start of the dirty section, as records supersede others only from there on.
    """
    group_of = {segment.base_offset: number for number, group in enumerate(groups) for segment in group}
    dirty_bases = {segment.base_offset for segment in dirty.segments}
    segments = {segment.base_offset: segment for segment in [*itertools.chain(*groups), *dirty.segments]}

    def stretch(segment: Segment) -> tuple[int | None, bool, bool]:
        base = segment.base_offset
        return group_of.get(base), base in dirty_bases, base in dirty_bases and base < dirty.start

    joined_groups: list[list[Segment]] = [[] for _ in groups]
    joined_dirty: list[Segment] = []
    ordered = (segment for _, segment in sorted(segments.items()))
    for (group, is_dirty, _), some in itertools.groupby(ordered, stretch):
        joined = list(_joined(some))
        if group is not None:
            joined_groups[group] += joined
        if is_dirty:
            joined_dirty += joined
    return joined_groups, replace(dirty, segments=tuple(joined_dirty))


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Segments in order, those joined that fit one window together."""
    parts: list[Segment] = []
    size = 0
    for segment in segments:
        if parts and (not segment.size_bytes or size + segment.size_bytes > SMALL_WINDOW_BYTES):
            yield _as_one(parts)
            parts, size = [], 0
        if not segment.size_bytes:  # a position must belong to one segment
            yield segment
            continue
        parts.append(segment)
        size += segment.size_bytes
    if parts:
        yield _as_one(parts)


def _as_one(parts: Sequence[Segment]) -> Segment:
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    size = sum(part.size_bytes for part in parts)
    log = replace(first.files.log, size_bytes=size, mtime_ns=last.files.log.mtime_ns)
    files = SegmentFiles(first.base_offset, log, {})
    return JoinedSegment(first.fs, first.directory, files, last.following, first.index_root, tuple(parts))

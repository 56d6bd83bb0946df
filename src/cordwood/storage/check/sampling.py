"""The parts of a large segment that a quick check reads.

    position 0 ……… │ entry ……… │ entry ……… │ … │ last entry ……… end
    first batch      one batch                   the last batches
                     each of `Quick.units` entries

All parts start at batches, since entries of the offset index point to batches; their checksums and records are checked.
The time index's last entry must have the timestamp of its batch, so that batch is read, too. The checks are those of
`batches` and `indexes`: they get fewer batches and entries, and compare only what these determine.

A sample seldom shows what is wrong: if there is no batch at an entry, the entry or the log may be damaged. So a segment
that looks damaged is *doubtful*, and is read whole. Then its findings are those of a whole check. Only a few kinds of
findings (`_CERTAIN`) need no confirmation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import BatchRows
from cordwood.storage.check.batches import TO_END, LogCheck, LostTail, Observer, SegmentFile
from cordwood.storage.check.findings import Findings, Kind
from cordwood.storage.check.indexes import Handling, OffsetIndexCheck, TimeIndexCheck
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.formats.filenames import FileKind, PartitionFile
from cordwood.storage.log.files import IndexEntries
from cordwood.storage.log.header_sample import UNITS, UnfitError, Units
from cordwood.storage.log.segment import Segment, header_at

#: Findings that a sample proves: their evidence is the length of a file, or its end.
_CERTAIN = frozenset({Kind.TORN_TAIL, Kind.ZERO_TAIL, Kind.INDEX_PADDED, Kind.INDEX_SIZE, Kind.SEGMENT_SIZE})


@dataclass(slots=True)
class Quick:
    """How much one quick check reads; an object for each check, as it counts the segments that are read whole.

    Attributes:
        units: maximum number of batches of a segment between its first batch and its end.
        whole_bytes: segments up to this size are read whole.
        batch_bytes: of larger batches among these only the header is read.
        tail_bytes: if the last entry of the offset index is further from the segment's end, the end is not looked for.
        confirm_bytes: doubtful segments are read whole up to this total; of further ones only the names are reported.
    """

    units: int = UNITS
    whole_bytes: int = 256 << 10
    batch_bytes: int = 64 << 10
    tail_bytes: int = 16 << 20
    confirm_bytes: int = 2 << 30
    _confirmed_bytes: int = field(default=0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def confirms(self, size_bytes: int) -> bool:
        """Return whether a doubtful segment of this size is read whole; callable from any thread."""
        with self._lock:
            self._confirmed_bytes += size_bytes
            return self._confirmed_bytes <= self.confirm_bytes


@dataclass(slots=True)
class Looked:
    """The extent of a quick check.

    Attributes:
        read_bytes: bytes that it read of all files.
        sampled: number of sampled segments.
        sampled_bytes: size of these segments.
        recovered_bytes: size of those among them that a broker's next start reads whole.
        endless: paths of segments whose end it did not find, as their offset index is missing or too short.
        doubtful: paths of segments that look damaged, and that it did not read whole, as they are too large together.
    """

    read_bytes: int = 0
    sampled: int = 0
    sampled_bytes: int = 0
    recovered_bytes: int = 0
    endless: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    def add(self, other: Looked) -> None:
        """Add the sampled segments of a partition."""
        self.sampled += other.sampled
        self.sampled_bytes += other.sampled_bytes
        self.recovered_bytes += other.recovered_bytes
        self.endless += other.endless
        self.doubtful += other.doubtful


@dataclass(frozen=True, slots=True)
class SegmentSample:
    """A segment after its sample was checked.

    Attributes:
        findings: certain findings.
        parts: the valid batches of each part; a part follows the part before it unless it is in `jumps`.
        jumps: indexes of parts with unread batches before them.
        reaches_end: the last batches were read.
        is_doubtful: the sample looks damaged; nothing else of it counts.
    """

    log: LogCheck
    offsets: OffsetIndexCheck | None
    times: TimeIndexCheck | None
    findings: Findings
    parts: tuple[BatchRows, ...]
    jumps: frozenset[int]
    reaches_end: bool
    is_doubtful: bool


def sample_segment(segment: Segment, place: SegmentFile, handling: Handling, quick: Quick) -> SegmentSample | None:
    """Check a few parts of a segment.

    Returns:
        None if all of it has to be read, because it is small.
    """
    if segment.size_bytes <= quick.whole_bytes:
        return None
    findings, lost = Findings(), LostTail()
    log = LogCheck(place, findings, lost)
    kept = _Kept()
    try:
        parts = _choose(segment, quick, findings, handling)
        if parts is None:
            return None
        offsets, times = parts.offsets, parts.times

        def on_jump() -> None:
            kept.jump()
            if offsets is not None:
                offsets.jump()

        with segment.open() as file:
            file.expect_random_reads()
            watching: list[Observer] = [kept, *([] if times is None else [times])]
            seeing: list[Observer] = [] if offsets is None else [offsets]
            log.run(file, watching, seeing, lambda _: None, parts.ranges, on_jump)
    except (OSError, UnfitError):
        return SegmentSample(log, None, None, findings, (), frozenset(), reaches_end=False, is_doubtful=True)
    for index in (offsets, times):
        if index is not None:
            if parts.reaches_end:
                index.end()
            index.close(log_damaged=log.damaged)
    is_doubtful = lost.path is not None or not {one.kind for one in findings.found} <= _CERTAIN
    return SegmentSample(
        log,
        offsets,
        times,
        findings,
        tuple(kept.parts),
        frozenset(kept.jumps),
        parts.reaches_end,
        is_doubtful or not kept.parts,
    )


class _Kept:
    """Keeps the valid batches of a segment's parts."""

    def __init__(self) -> None:
        self.parts: list[BatchRows] = []
        self.jumps: set[int] = set()

    def add(self, batches: BatchRows) -> None:
        """Keep the next batches."""
        self.parts.append(batches.copy())

    def jump(self) -> None:
        """Note that batches before the next ones are not read."""
        self.jumps.add(len(self.parts))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a segment, by position, and the checks of its indexes, with the entries that were read."""

    ranges: list[tuple[int, int]]
    reaches_end: bool
    offsets: OffsetIndexCheck | None = None
    times: TimeIndexCheck | None = None


def _choose(segment: Segment, quick: Quick, findings: Findings, handling: Handling) -> _Parts | None:
    """Read the ends of the indexes, and choose the parts.

    Returns:
        None if all of the segment has to be read, as it is short and its offset index has no entry.

    Raises:
        OSError: a file cannot be read.
        UnfitError: an index does not fit the segment.
    """
    path = segment.index_path(FileKind.OFFSET_INDEX)
    with segment.open() as file:
        file.expect_random_reads()
        is_short = file.size() <= quick.tail_bytes
        if path is None and is_short:
            return None
        first_end = _batch_end(file, 0)
        if path is None:
            times, _ = _time_index(segment, findings, handling)
            return _Parts([(0, first_end)], reaches_end=False, times=times)
        with segment.fs.open(path) as index:
            index.expect_random_reads()
            entries = IndexEntries(index, offset_index.ENTRY)
            if is_short and not len(entries):
                return None
            times, newest = _time_index(segment, findings, handling)
            if not len(entries):
                return _Parts([(0, first_end)], reaches_end=False, times=times)
            units = Units(file, entries)
            if units.end + quick.tail_bytes < file.size():
                ranges = {0: first_end}
            else:
                ranges = _ranges(file, units, first_end, quick)
                if newest is not None and newest < int(entries[len(entries) - 1]["offset"]):
                    start, end = units.range_of(newest)
                    if end - start <= quick.tail_bytes:
                        ranges[start] = end
        loaded = entries.loaded
        known = offset_index.OffsetIndex(
            segment.base_offset,
            loaded["offset"].astype(np.int64) + segment.base_offset,
            loaded["position"].astype(np.int64),
            entries.max_entries,
            entries.rest,
        )
    reaches_end = units.end in ranges
    offsets = OffsetIndexCheck(known, path, findings, handling, len(entries))
    return _Parts(_in_order(ranges), reaches_end, offsets, times)


def _ranges(file: ReadableFile, units: Units, first_end: int, quick: Quick) -> dict[int, int]:
    """Return the start and end of the first batch, of the batches between, and of the tail."""
    ranges = {0: first_end}
    chosen = range(1, units.count) if units.count - 1 <= quick.units else units.choose(quick.units)
    for start in {units.start(number) for number in chosen}:
        end = _batch_end(file, start)
        if end - start <= quick.batch_bytes:
            ranges[start] = end
    ranges[units.end] = TO_END
    return ranges


def _in_order(ranges: dict[int, int]) -> list[tuple[int, int]]:
    """Return the ranges by position, joined where one ends at the start of the next."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges.items()):
        before = found[-1][1] if found else -1
        if start < before:
            raise UnfitError  # an entry points into a batch
        found.append((found.pop()[0] if start == before else start, end))
    return found


def _batch_end(file: ReadableFile, position: int) -> int:
    """Return the end of the batch at a position."""
    batch = header_at(file, position)
    if batch is None:
        raise UnfitError
    return position + int(batch["size_bytes"])


def _time_index(segment: Segment, findings: Findings, handling: Handling) -> tuple[TimeIndexCheck, int | None]:
    """Return the check of the time index, and the relative offset of its last entry."""
    path = segment.index_path(FileKind.TIME_INDEX)
    if path is None:
        missing = f"{segment.directory}/{PartitionFile(FileKind.TIME_INDEX, segment.base_offset).name}"
        return TimeIndexCheck(None, missing, findings, handling, 0), None
    with segment.fs.open(path) as file:
        file.expect_random_reads()
        entries = IndexEntries(file, time_index.ENTRY)
        last = entries[len(entries) - 1] if len(entries) else None
    loaded = entries.loaded
    known = time_index.TimeIndex(
        segment.base_offset,
        loaded["timestamp"].astype(np.int64),
        loaded["offset"].astype(np.int64) + segment.base_offset,
        entries.max_entries,
        entries.rest,
    )
    check = TimeIndexCheck(known, path, findings, handling, len(entries))
    return check, None if last is None else int(last["offset"])

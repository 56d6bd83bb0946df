"""The log as a load would leave it: its files, the kept part of each segment, its end, and its time for retention.

`recovery` decides by names which files a load removes, renames or rebuilds. This module continues: it reads as much of
the segments as is needed to predict their state once a broker, or a clean, has loaded them. Nothing on disk changes.

    rebuilt   a segment without an offset index, or with a transaction index that does not fit it; after a crash, each
              segment from the recovery point on. It is read batch by batch, up to the first incomplete one; its
              largest timestamp is that of its batches.
    trusted   any other segment. Its size is the file's, and its largest timestamp is that of the last entry of its time
              index, also if this entry is zeros (1970). A missing or empty time index is not rebuilt: a broker then
              uses the modification time of the `.log` file.

A cut in a segment before the recovery point keeps the segments after it; any other cut ends the log.

A running broker holds the newest timestamps and the size of its active segment in memory: with `preallocate`, the file
is longer than its batches. This module reads both from the batches after the last index entry. It does the same for a
log with padded indexes that was not shut down cleanly and is not recovered either, such as a copy made while the broker
ran.

Source: Kafka LogLoader, LogSegment.sanityCheck, LogSegment.recover, LogSegment.largestTimestamp.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.common.types import NONE
from cordwood.fs.base import FileInfo, ReadableFile
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    PartitionFile,
    parse_file,
)
from cordwood.storage.log.recovery import SEGMENT_KINDS, Verb
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, GapKind, WindowReader, only_zeros, read_headers

#: Bytes at the end of a rebuilt segment in which checksums are verified; before them only headers are read. A load
#: verifies all checksums, which takes seconds per segment; `check` does so, too.
_CHECKED_BYTES = 16 << 20
_SMALL_INDEX_BYTES = 4096

#: Files about the records of a log; a load that empties the log replaces them.
_OF_RECORDS = (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT, FileKind.LEADER_EPOCHS)


@dataclass(frozen=True, slots=True)
class Stop:
    """How the broker of a log stopped.

    Attributes:
        live: the broker is still running.
        clean: the broker shut down cleanly.
        recovery_point: after a crash, recovery starts at the segment that holds this offset. None if there is no
            recovery, or the state is unknown, as for a copied partition.
        set_aside: the broker renamed the directory, to delete it or as a stray, and did not close its files.
    """

    live: bool = False
    clean: bool = False
    recovery_point: int | None = None
    set_aside: bool = False

    @property
    def crashed(self) -> bool:
        """Whether the next load will recover the log."""
        return self.recovery_point is not None


@dataclass(frozen=True, slots=True)
class LoadCut:
    """A position at which a load truncates a log or a segment.

    Attributes:
        base_offset: base offset of the segment.
        position: position of the first truncated byte in the segment.
        is_end: all later segments are removed, too. They stay if the segment is before the recovery point.
        only_zeros: only zeros follow: preallocated, or lost in a power cut.
    """

    base_offset: int
    position: int
    is_end: bool
    only_zeros: bool = False


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment as a load leaves it.

    Attributes:
        size_bytes: size of its remaining batches.
        index_bytes, time_index_bytes: size of the entries of its index files as they are now.
        mtime_ms: modification time of its `.log`; the time of the load, if the load truncates it.
        newest_ms: the largest timestamp that the load finds for it; NONE without any.
        is_rebuilt: its batches were read, not its indexes.
        next_offset: offset after its last batch; None if it was not read.
    """

    segment: Segment
    size_bytes: int
    index_bytes: int
    time_index_bytes: int
    mtime_ms: int
    newest_ms: int
    is_rebuilt: bool = False
    next_offset: int | None = None

    @property
    def largest_timestamp(self) -> int:
        """The timestamp used by retention and `min.compaction.lag.ms`.

        Source: Kafka LogSegment.largestTimestamp.
        """
        return self.newest_ms if self.newest_ms >= 0 else self.mtime_ms

    @property
    def cut_bytes(self) -> int:
        """Number of bytes that a recovery truncates."""
        return self.segment.size_bytes - self.size_bytes


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log as a load leaves it.

    Attributes:
        log: the log with the segments that stay.
        segments: the same segments; empty if the load replaces the log by an empty one.
        log_end_offset: the offset of the next record.
        cuts: positions at which segments are truncated.
        left_out: segments after the cut that ends the log.
        is_emptied: the log ends below its log start offset, so the load replaces it by an empty one.
    """

    log: LogView
    segments: tuple[LoadedSegment, ...]
    log_end_offset: int
    cuts: tuple[LoadCut, ...] = ()
    left_out: tuple[Segment, ...] = ()
    is_emptied: bool = False


def as_loaded(log: LogView, stop: Stop, now_ms: int) -> LoadedLog:
    """Predict a log's state after a load.

    Args:
        stop: how its broker stopped; the log of a running broker is not recovered.
        now_ms: the time of the load.

    Raises:
        CorruptFileError: a transaction index has an unknown version, so that a load fails.
    """
    found: list[LoadedSegment] = []
    cuts: list[LoadCut] = []
    bases = [segment.base_offset for segment in log.segments]
    unflushed = len(bases)
    if stop.recovery_point is not None:
        unflushed = max(0, bisect.bisect_right(bases, stop.recovery_point) - 1)
    for at, segment in enumerate(log.segments):
        if at >= unflushed or not (stop.live or _has_sane_indexes(segment)):
            one = _rebuilt(segment, now_ms)
        elif segment.following is None and (stop.live or (not stop.clean and _is_padded(segment))):
            one = _in_use(segment)
        else:
            one = trusted(segment)
        found.append(one)
        if one.is_rebuilt and one.cut_bytes:
            zeros = ends_with_zeros(segment, one.size_bytes)
            cuts.append(LoadCut(segment.base_offset, one.size_bytes, is_end=at >= unflushed, only_zeros=zeros))
            if cuts[-1].is_end:
                break
    end = found[-1].next_offset if found else 0
    end = log.next_offset if end is None else end
    stays = log if len(found) == len(bases) else log.with_segments([one.segment for one in found])
    is_emptied = bool(found) and not stop.live and log.log_start_offset > end
    return LoadedLog(
        stays, () if is_emptied else tuple(found), end, tuple(cuts), log.segments[len(found) :], is_emptied
    )


def as_it_is(log: LogView) -> LoadedLog:
    """Describe a log that no load will change, without reading its segments: index sizes and timestamps are unknown."""
    segments = tuple(LoadedSegment(one, one.size_bytes, 0, 0, one.mtime_ms, NONE) for one in log.segments)
    return LoadedLog(log, segments, log.next_offset)


def loaded_sizes(segment: Segment, now_ms: int) -> LoadedSegment:
    """Return a segment as a load leaves it after a clean shutdown, but without its largest timestamp: if its indexes
    are trusted, nothing is read.
    """
    return _trusted(segment, NONE) if _has_sane_indexes(segment) else _rebuilt(segment, now_ms)


def loaded_segment(segment: Segment, now_ms: int) -> LoadedSegment:
    """Return a segment as a load leaves it after a clean shutdown."""
    return trusted(segment) if _has_sane_indexes(segment) else _rebuilt(segment, now_ms)


def trusted(segment: Segment) -> LoadedSegment:
    """Return a segment as its indexes describe it, without reading its batches."""
    return _trusted(segment, _newest_indexed(segment))


def _trusted(segment: Segment, newest_ms: int) -> LoadedSegment:
    sizes = (
        _whole_entries(segment, FileKind.OFFSET_INDEX, offset_index.ENTRY),
        _whole_entries(segment, FileKind.TIME_INDEX, time_index.ENTRY),
    )
    return LoadedSegment(segment, segment.size_bytes, *sizes, segment.mtime_ms, newest_ms)


def _whole_entries(segment: Segment, kind: FileKind, entry: np.dtype[np.void]) -> int:
    """Return the size of the whole entries of an index file, by its size when the log was opened; 0 without it."""
    index = segment.files.indexes.get(kind)
    return 0 if index is None else index.size_bytes // entry.itemsize * entry.itemsize


def _newest_indexed(segment: Segment) -> int:
    """Return the timestamp of the last entry of the time index, without reading the others; NONE without entries.

    For a segment of 1 GB this saves reading 5 MB.
    """
    path, entry = segment.index_path(FileKind.TIME_INDEX), time_index.ENTRY
    if path is None:
        return NONE
    with segment.fs.open(path) as file:
        # One read returns all of a small index, and its size: a log may have 1,000s of segments.
        entries = file.read(0, _SMALL_INDEX_BYTES)
        if len(entries) == _SMALL_INDEX_BYTES:
            count = file.size() // entry.itemsize
            entries = file.read((count - 1) * entry.itemsize, entry.itemsize)
    whole = len(entries) // entry.itemsize
    return int(np.frombuffer(entries, entry, whole)[-1]["timestamp"]) if whole else NONE


def _is_padded(segment: Segment) -> bool:
    """Return whether the offset or time index of a segment ends with zeros."""
    for kind, entry in ((FileKind.OFFSET_INDEX, offset_index.ENTRY), (FileKind.TIME_INDEX, time_index.ENTRY)):
        path = segment.index_path(kind)
        if path is None or segment.files.indexes[kind].size_bytes <= entry.itemsize:
            continue
        with segment.fs.open(path) as file:
            end = file.size() // entry.itemsize * entry.itemsize
            if not any(file.read(end - entry.itemsize, entry.itemsize)):
                return True
    return False


def _has_sane_indexes(segment: Segment) -> bool:
    """Return whether a load accepts a segment's indexes unchanged.

    Source: Kafka LogSegment.sanityCheck, TransactionIndex.sanityCheck.
    """
    indexes = segment.files.indexes
    if FileKind.OFFSET_INDEX not in indexes:
        return False
    transactions = indexes.get(FileKind.TRANSACTION_INDEX)
    if transactions is None or not transactions.size_bytes:
        return True
    try:
        index = segment.transaction_index()
    except CorruptFileError as error:
        if error.kind is IndexProblem.VERSION:
            raise
        return False
    return index is None or all(one.last_offset >= segment.base_offset for one in index.transactions())


def _in_use(segment: Segment) -> LoadedSegment:
    """Return an active segment with preallocated indexes; read the last batches, for which they have no entries yet."""
    offsets, _ = segment.last_entry(FileKind.OFFSET_INDEX)
    times, newest = segment.last_entry(FileKind.TIME_INDEX)
    newest_ms = NONE if newest is None else int(newest["timestamp"])
    next_offset, size = segment.base_offset, segment.size_bytes
    with segment.open() as file:
        start = segment.last_batches(file) if times else 0
        for item in read_headers(file, base_offset=segment.base_offset, start=start, search=False):
            if isinstance(item, Gap):
                size = item.position if item.kind is GapKind.ZEROS else size
                break
            newest_ms = max(newest_ms, int(item["max_timestamp"].max()))
            next_offset = int(item["last_offset"][-1]) + 1
    return LoadedSegment(
        segment,
        size,
        offsets * offset_index.ENTRY.itemsize,
        times * time_index.ENTRY.itemsize,
        segment.mtime_ms,
        newest_ms,
        next_offset=next_offset,
    )


def zero_bytes(log: LogView) -> int:
    """Return the number of zero bytes behind the last batch of a log: preallocated, or lost in a power cut.

    0 for a log that cannot be read, or is in an object store, where that takes a request per partition.
    """
    if not log.segments or log.fs.reads_by_request(log.path):
        return 0
    active = log.segments[-1]
    try:
        with active.open() as file:
            if not file.size() or any(file.read(file.size() - 1, 1)):
                return 0
            # A record without headers ends with a zero, too.
            return active.size_bytes - _end_of_batches(active, file)
    except OSError:
        return 0


def _end_of_batches(segment: Segment, file: ReadableFile) -> int:
    """Return the position of the zeros behind the last batch; the size of the segment without any."""
    start = segment.last_batches(file)
    for item in read_headers(file, base_offset=segment.base_offset, start=start, search=False):
        if isinstance(item, Gap):
            return item.position if item.kind is GapKind.ZEROS else segment.size_bytes
    return segment.size_bytes


def ends_with_zeros(segment: Segment, position: int) -> bool:
    """Return whether a segment has only zeros from a position on."""
    with segment.open() as file:
        return only_zeros(file, position, file.size())


def _rebuilt(segment: Segment, now_ms: int) -> LoadedSegment:
    """Read a segment as a recovery does, up to the first incomplete batch."""
    size, newest_ms, next_offset = 0, NONE, segment.base_offset
    for batches in _whole_batches(segment):
        size = int(batches["position"][-1] + batches["size_bytes"][-1])
        newest_ms = max(newest_ms, int(batches["max_timestamp"].max()))
        next_offset = int(batches["last_offset"][-1]) + 1
    mtime_ms = segment.mtime_ms if size == segment.size_bytes else now_ms
    index = trusted(segment)
    return LoadedSegment(
        segment, size, index.index_bytes, index.time_index_bytes, mtime_ms, newest_ms, True, next_offset
    )


def _whole_batches(segment: Segment) -> Iterator[BatchRows]:
    """Yield the batches of a segment up to the first incomplete one; see `_CHECKED_BYTES`."""
    base, start = segment.base_offset, 0
    with segment.open() as file:
        checked = file.size() - _CHECKED_BYTES
        if checked > 0:
            for item in read_headers(file, base_offset=base, search=False):
                if isinstance(item, Gap):
                    return
                in_front = item[item["position"] < checked]
                if in_front.size:
                    yield in_front
                    start = int(in_front["position"][-1] + in_front["size_bytes"][-1])
                if in_front.size < item.size:
                    break
        windows = WindowReader(file, Checks.WHOLE, base_offset=base, start=start, search=False)
        for _, batches in undamaged(windows):
            if batches.size:
                yield batches


def undamaged(windows: Iterable[BatchWindow | Gap]) -> Iterator[tuple[BatchWindow, BatchRows]]:
    """Yield the windows of a segment up to the first damage, each with its complete batches."""
    for window in windows:
        if isinstance(window, Gap):
            return
        valid = is_valid(window.batches)
        if not valid.all():
            yield window, window.batches[: int(np.argmin(valid))]
            return
        yield window, window.batches


# ---- files -----------------------------------------------------------------------------------------------------------


def files_after_recovery(log: LogView) -> Iterator[tuple[str, str, PartitionFile | None]]:
    """Yield the files of a partition that survive a load.

    Yields:
        (present name, name after the load, parsed name; None for a name that Kafka could not have given)
    """
    dropped = set(stray_snapshots(log))
    emptied = log.ends_below_start
    for info, name in files_after_swaps(log):
        file = parse_file(name)
        if info.name in dropped or (emptied and file is not None and file.kind in _OF_RECORDS):
            continue
        yield info.name, name, file


def files_after_swaps(log: LogView) -> Iterator[tuple[FileInfo, str]]:
    """Yield the regular files that remain after a partition's swaps are completed, each with its name then."""
    dropped = {action.file for action in log.recovery.actions if action.verb is Verb.DELETE}
    renamed = {action.file: action.target for action in log.recovery.actions if action.verb is Verb.RENAME}
    for info in log.entries:
        if not info.is_directory and not info.is_special and info.name not in dropped:
            yield info, renamed.get(info.name, info.name)


def stray_snapshots(log: LogView) -> list[str]:
    """Return the names of the producer snapshots that a load removes; see `strays`."""
    snapshots = log.recovery.snapshots
    return [snapshots[offset].name for offset in strays(snapshots, [one.base_offset for one in log.segments])]


def strays(snapshots: Iterable[int], bases: Iterable[int]) -> list[int]:
    """Return the offsets of producer snapshots that are not at the start of a segment, as a load removes them.

    A clean that merges segments leaves such snapshots. The newest one is not a stray if no segment starts after it:
    it is the snapshot of the log's end.

    Args:
        snapshots: offsets of all producer snapshots, ascending.
        bases: base offsets of the segments.

    Source: Kafka ProducerStateManager.removeStraySnapshots.
    """
    known = set(bases)
    found = [offset for offset in snapshots if offset not in known]
    if found and found[-1] >= max(known, default=0):
        found.pop()
    return found


def broker_would_load(name: PartitionDirectory | None) -> bool:
    """Return whether a broker loads and recovers a directory as a log; it loads KRaft's metadata log separately."""
    return (
        name is not None
        and name.state is not DirectoryState.DELETED
        and name.topic_partition.topic != CLUSTER_METADATA_TOPIC
    )

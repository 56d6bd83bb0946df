"""Recovery of a partition after a crash, into a copy: what a broker would do to its files is done to new files.

Everything below the recovery point was flushed and is taken as it is. The segments from there on, and those without an
offset index, are read batch by batch: complete batches stay, and their indexes, aborted transactions, leader epochs and
producers are collected again. The log ends at the first batch that is incomplete or damaged.

    copied     segments below the recovery point, and files of no segment
    rewritten  segments from the recovery point on; one whose offsets span too much becomes several
    left out   what `recovery` would delete; all segments behind an incomplete batch; everything, if the log then
               ends below its start
    new        the producer snapshot of the log's end

Afterwards the partition is as after a clean shutdown.

Source: Kafka LogLoader.recoverLog, LogSegment.recover, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.errors import CorruptBatchError, CorruptFileError, DataError
from cordwood.fs.base import ALL_READ_AND_WRITE, OWNER_WRITES, Link, TargetStore
from cordwood.kernels.layout import BatchRows, U8Array
from cordwood.record.columns import BatchWindow, decode, is_valid
from cordwood.record.control import coordinator_epoch
from cordwood.record.headers import is_control
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind, PartitionFile, Temporary, offset_name, parse_file
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import copy_file, read_file, write_file
from cordwood.storage.log.recovered import files_after_recovery
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS, Producers, headers_from, newest_snapshot
from cordwood.types import NONE

#: Room for all entries that 2 GiB of batches can have, whatever `segment.index.bytes` is now.
_INDEX_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        next_offset: the log end offset.
        notes: what was cut off, in words.
        complete: False if the partition could not be recovered and is unchanged.
    """

    next_offset: int
    notes: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The configs that recovery applies.

    Attributes:
        index_interval_bytes: `index.interval.bytes`.
        producer_expiration_ms: `producer.id.expiration.ms`.
    """

    index_interval_bytes: int = 4096
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What recovery writes for a log, into another folder: files of segments, leader epochs, producer snapshots.

    Attributes:
        next_offset: the log end offset.
        notes: what was cut off, in words.
        kept: base offsets of the log's segments that are not behind a cut.
        segments: per segment that was read the base offsets of those that it became.
        cut: base offset of the segment in which the log is cut, and the position there; None: it is not cut.
    """

    next_offset: int
    notes: tuple[str, ...]
    kept: frozenset[int]
    segments: Mapping[int, tuple[int, ...]]
    cut: tuple[int, int] | None = None

    def stays(self, log: LogView, name: str, file: PartitionFile | None) -> bool:
        """Whether a file of the log is taken as it is.

        Args:
            log: the log.
            name: of the file, now.
            file: what it is once the log is loaded.
        """
        if file is None:
            return True
        if file.kind in SEGMENT_KINDS:
            return file.offset in self.kept and file.offset not in self.segments
        if file.kind is FileKind.PRODUCER_SNAPSHOT:
            # A broker keeps the snapshots at segment starts, and writes a new one at the log end.
            return file.offset in self.kept and file.offset < self.next_offset and _is_readable(log, name)
        return file.kind is not FileKind.LEADER_EPOCHS


def recover_into_copy(
    fs: TargetStore,
    log: LogView,
    target: str,
    *,
    recovery_point: int,
    now_ms: int,
    settings: RecoverySettings | None = None,
    link: Link | None = None,
) -> Recovered:
    """Write a partition as a broker would leave it after its next start.

    Args:
        fs: where the partition is, and where it is written.
        log: of the partition; it is only read.
        target: an existing, empty directory.
        recovery_point: everything below this offset was flushed.
        now_ms: producers that are too old at this time are forgotten.
        settings: the partition's configs.
        link: how to link unchanged logs instead of copying them.

    Raises:
        DataError: a segment holds offsets that don't belong there; what was written does not count.
    """
    new = rewrite_unflushed(fs, log, target, recovery_point=recovery_point, now_ms=now_ms, settings=settings)
    for source, name, file in files_after_recovery(log):
        if new.stays(log, source, file):
            is_log = file is not None and file.kind is FileKind.LOG
            copy_file(fs, f"{log.path}/{source}", f"{target}/{name}", link=link if is_log else None)
    return Recovered(new.next_offset, new.notes)


def rewrite_unflushed(
    fs: TargetStore,
    log: LogView,
    folder: str,
    *,
    recovery_point: int,
    now_ms: int,
    settings: RecoverySettings | None = None,
    whole_too: bool = True,
) -> Rewritten:
    """Write what a broker that starts after a crash would rewrite.

    Args:
        fs: where the folder is.
        log: is only read.
        folder: an existing directory without such files.
        recovery_point: everything below this offset was flushed.
        now_ms: producers that are too old at this time are forgotten.
        settings: the partition's configs.
        whole_too: also write the `.log` of a segment without damage, besides its indexes.

    Raises:
        DataError: a segment holds offsets that don't belong there; what was written does not count.
        CorruptFileError: a transaction index has an unknown version, or the leader epochs cannot be read: a broker
            does not load such a log, and what is in these files would be lost.
    """
    settings = settings or RecoverySettings()
    _check_versions(log)
    bases = [segment.base_offset for segment in log.segments]
    unflushed = max(0, bisect.bisect_right(bases, recovery_point) - 1)
    epochs = _epochs(log)
    producers: Producers | None = None
    kept: list[int] = []
    segments: dict[int, tuple[int, ...]] = {}
    notes: list[str] = []
    next_offset, cut = 0, None
    limits = IndexLimits(settings.index_interval_bytes, _INDEX_BYTES)

    def begin(base_offset: int) -> SegmentWriter:
        assert producers is not None, "they are there before a segment is rewritten"
        # A snapshot that is not at a segment start is removed, even if an earlier recovery wrote it.
        stays = base_offset in bases and _is_readable(log, offset_name(base_offset, FileKind.PRODUCER_SNAPSHOT))
        if base_offset != bases[0] and not stays:
            _write_snapshot(fs, folder, producers, base_offset)
        if segments:
            # A broker takes a snapshot at each segment start and reloads it, which drops expired producers; so do we.
            producers.expire(now_ms=now_ms, expiration_ms=settings.producer_expiration_ms)
        return SegmentWriter(fs, folder, base_offset, limits, mode=log.segments[0].files.log.mode | OWNER_WRITES)

    for at, segment in enumerate(log.segments):
        kept.append(segment.base_offset)
        if at < unflushed and FileKind.OFFSET_INDEX in segment.files.indexes:
            producers = None
            continue
        if producers is None:
            producers = producers_at(log, segment.base_offset, now_ms, settings.producer_expiration_ms)
        writers, epochs, lost = _rewrite(segment, begin, producers, epochs, taken=bases)
        for writer in writers:
            writer.finish(mtime_ns=segment.files.log.mtime_ns)
        segments[segment.base_offset] = tuple(writer.base_offset for writer in writers)
        next_offset = max(next_offset, writers[-1].next_offset)
        if not (whole_too or lost or len(writers) > 1):
            fs.unlink(writers[0].path(FileKind.LOG))
        if len(writers) > 1:
            notes.append(f"{segment.path} becomes {len(writers)} segments, as its offsets span more than 2^31")
        if lost:
            position = sum(writer.size_bytes for writer in writers)
            notes.append(f"{segment.path} is cut at position {position}: {lost} bytes there are no whole batch")
        if lost and at >= unflushed:
            cut = segment.base_offset, position
            if left := log.segments[at + 1 :]:
                size = sum(one.size_bytes for one in left)
                notes.append(f"{len(left)} segments behind the cut are left out, {size} bytes")
            break
    if next_offset < log.log_start_offset:
        return start_anew(fs, log, folder, clean_shutdown=False, notes=notes, cut=cut)
    _write_epochs(fs, log, folder, epochs, next_offset)
    if producers is not None and next_offset > 0:
        _write_snapshot(fs, folder, producers, next_offset)
    return Rewritten(next_offset, tuple(notes), frozenset(kept), segments, cut)


def start_anew(
    fs: TargetStore,
    log: LogView,
    folder: str,
    *,
    clean_shutdown: bool,
    notes: Sequence[str] = (),
    cut: tuple[int, int] | None = None,
) -> Rewritten:
    """Write the empty log that replaces a log that ends below its start.

    All records below the log start offset are deleted for consumers, so the old log holds nothing that they could read.
    A broker does the same, whether the log was shut down cleanly or not. Only after a clean shutdown it writes an empty
    producer snapshot, because it finds no snapshot at all then.

    Args:
        fs: where the folder is.
        log: is only read.
        folder: an existing directory; segments and snapshots that are in it go.
        clean_shutdown: whether the log was shut down cleanly.
        notes: what was cut off before, in words.
        cut: base offset of the segment in which the log was cut before, and the position there.

    Source: Kafka LogLoader.load, deleteSegmentsIfLogStartGreaterThanLogEnd; UnifiedLog.rebuildProducerState.
    """
    _check_versions(log)
    for info in fs.list(folder):
        file = parse_file(info.name)
        if file is not None and file.kind in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT):
            fs.unlink(f"{folder}/{info.name}")
    start = log.log_start_offset
    like = log.segments[0].files.log if log.segments else log.fs.stat(log.path)
    SegmentWriter(fs, folder, start, IndexLimits(), mode=like.mode & ALL_READ_AND_WRITE | OWNER_WRITES).finish()
    _write_epochs(fs, log, folder, LeaderEpochs(), start)
    if clean_shutdown:
        _write_snapshot(fs, folder, Producers(), start)
    note = f"{log.path} ends below its log start offset {start}: its records were deleted, now its segments are, too"
    return Rewritten(start, (*notes, note), frozenset(), {}, cut)


def complete_indexes(fs: TargetStore, log: LogView, *, now_ms: int, settings: RecoverySettings | None = None) -> None:
    """Give segments of a copy that lack an offset index their indexes. A damaged segment is left alone."""
    for _, paths in rewrite_indexes(fs, log, log.path, now_ms=now_ms, settings=settings, suffix=Temporary.TMP):
        for path in paths:
            fs.rename(path, path.removesuffix(Temporary.TMP))


def rewrite_indexes(
    fs: TargetStore,
    log: LogView,
    folder: str,
    *,
    now_ms: int,
    settings: RecoverySettings | None = None,
    suffix: str = "",
) -> Iterator[tuple[Segment, Sequence[str]]]:
    """Rebuild the indexes of segments that have no offset index.

    Yields:
        (segment, paths of its new indexes); nothing for a damaged segment.
    """
    settings = settings or RecoverySettings()
    limits = IndexLimits(settings.index_interval_bytes, _INDEX_BYTES)
    for segment in log.segments:
        if FileKind.OFFSET_INDEX in segment.files.indexes:
            continue
        producers = producers_at(log, segment.base_offset, now_ms, settings.producer_expiration_ms)
        begin = functools.partial(SegmentWriter, fs, folder, limits=limits, suffix=suffix)
        writers, _, lost = _rewrite(segment, begin, producers, LeaderEpochs(), taken=())
        logs = [writer.path(FileKind.LOG) for writer in writers]
        paths = [path for writer in writers for path in writer.finish(mtime_ns=segment.files.log.mtime_ns)]
        whole = not lost and len(writers) == 1
        indexes = [path for path in paths if path not in logs]
        for path in logs if whole else paths:
            fs.unlink(path)
        if whole:
            yield segment, indexes


def producers_at(log: LogView, offset: int, now_ms: int, expiration_ms: int) -> Producers:
    """Producer state at an offset: the newest readable snapshot up to it, and the batches between."""
    producers, start = newest_snapshot(log, offset, now_ms=now_ms, expiration_ms=expiration_ms)
    for batches in headers_from(log, start, offset):
        producers.replay(batches[batches["last_offset"] < offset])
    return producers


def _rewrite(
    segment: Segment,
    begin: Callable[[int], SegmentWriter],
    producers: Producers,
    epochs: LeaderEpochs,
    *,
    taken: Collection[int],
) -> tuple[list[SegmentWriter], LeaderEpochs, int]:
    """Write the complete batches of a segment, as several segments where its offsets span too much.

    Args:
        segment: is only read.
        begin: makes the writer of a base offset.
        producers: as of its start; then as of its end.
        epochs: before it.
        taken: base offsets of other segments.

    Returns:
        (writers, leader epochs behind it, how many bytes were cut off)
    """
    writers = [begin(segment.base_offset)]
    with segment.open() as file:
        for item in WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, search=False):
            if isinstance(item, Gap):
                break
            valid = is_valid(item.batches)
            batches = item.batches if valid.all() else item.batches[: int(np.argmin(valid))]
            at = 0
            while at < batches.size:
                part = batches[at:]
                if not writers[-1].fitting(part):
                    _check_base(segment, part, taken)
                    writers.append(begin(int(part["base_offset"][0])))
                part = part[: writers[-1].fitting(part)]
                _check_offsets(segment, writers[-1].base_offset, part)
                written = writers[-1].append(list(_pieces(item, batches, at, part)), part)
                assert written == part.size > 0, "the indexes have room for a whole segment"
                writers[-1].add_aborted(producers.replay(part, _coordinator_epochs(item, part)))
                epochs = _assigned(epochs, part)
                at += part.size
            if batches.size < item.batches.size:
                break
        return writers, epochs, file.size() - sum(writer.size_bytes for writer in writers)


def _pieces(window: BatchWindow, batches: BatchRows, at: int, part: BatchRows) -> Iterable[U8Array]:
    """The bytes of a part of a window's batches that begins with number `at`."""
    start, size = int(batches["size_bytes"][:at].sum()), int(part["size_bytes"].sum())
    if start + size <= window.data.size:
        return [window.data[start : start + size]]
    return (np.frombuffer(piece, np.uint8) for piece in window.read(window.position + start, size))


def _check_base(segment: Segment, batches: BatchRows, taken: Collection[int]) -> None:
    """Whether a new segment can begin with some batches."""
    row = batches[0]
    if row["base_offset"] <= segment.base_offset or row["base_offset"] in taken:
        raise _misplaced(segment, row)


def _check_offsets(segment: Segment, base_offset: int, batches: BatchRows) -> None:
    wrong = np.flatnonzero(batches["last_offset"] < base_offset)
    if wrong.size:
        raise _misplaced(segment, batches[wrong[0]])


def _misplaced(segment: Segment, row: np.void) -> CorruptBatchError:
    return CorruptBatchError(
        f"offset {row['last_offset']} does not belong into the segment of base offset {segment.base_offset}",
        path=segment.path,
        position=int(row["position"]),
        offset=int(row["base_offset"]),
    )


def _coordinator_epochs(window: BatchWindow, batches: BatchRows) -> dict[int, int]:
    """The coordinator epochs of the markers among some batches, by offset."""
    markers = batches[is_control(batches)]
    found: dict[int, int] = {}
    if not markers.size:
        return found

    def skip(error: DataError) -> None:
        """A marker that says nothing of it."""

    for columns in decode(BatchWindow(window.position, window.data, markers, window.read), on_damage=skip):
        view = memoryview(columns.data)
        names = ("offset", "value_start", "value_size")
        for offset, start, size in zip(*(columns.rows[name].tolist() for name in names), strict=True):
            try:
                found[offset] = coordinator_epoch(view[start : start + size] if size >= 0 else None)
            except CorruptBatchError:
                found[offset] = NONE
    return found


def _assigned(epochs: LeaderEpochs, batches: BatchRows) -> LeaderEpochs:
    """The history after some batches; only an epoch above the latest one adds an entry."""
    known = batches[(batches["magic"] == 2) & (batches["leader_epoch"] >= 0)]
    latest = epochs.latest.epoch if epochs.latest else NONE
    highest = np.maximum.accumulate(known["leader_epoch"]) if known.size else known["leader_epoch"]
    for at in np.flatnonzero(np.diff(highest, prepend=latest) > 0).tolist():
        if highest[at] > latest:
            latest = int(highest[at])
            epochs = epochs.assigned(latest, int(known["base_offset"][at]))
    return epochs


def _check_versions(log: LogView) -> None:
    """Refuse a log with a transaction index of an unknown version, as a broker does, even if it is to be rebuilt.

    A broker looks at no other index of a segment that lacks its offset index.

    Raises:
        CorruptFileError: there is one.
    """
    for segment in log.segments:
        if FileKind.OFFSET_INDEX in segment.files.indexes:
            segment.transaction_index()


def _epochs(log: LogView) -> LeaderEpochs:
    path = f"{log.path}/{FileKind.LEADER_EPOCHS}"
    try:
        data = read_file(log.fs, path)
    except FileNotFoundError:
        return LeaderEpochs()
    return leader_epochs.history(leader_epochs.decode(data, path), path)


def _write_epochs(fs: TargetStore, log: LogView, target: str, epochs: LeaderEpochs, next_offset: int) -> None:
    entries = tuple(entry for entry in epochs.entries if entry.start_offset < next_offset)
    if entries or log.fs.exists(f"{log.path}/{FileKind.LEADER_EPOCHS}"):
        write_file(fs, f"{target}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(entries))


def _write_snapshot(fs: TargetStore, target: str, producers: Producers, offset: int) -> None:
    name = offset_name(offset, FileKind.PRODUCER_SNAPSHOT)
    write_file(fs, f"{target}/{name}", producer_state.encode(producers.entries()))


def _is_readable(log: LogView, name: str) -> bool:
    try:
        producer_state.decode(read_file(log.fs, f"{log.path}/{name}"))
    except (FileNotFoundError, CorruptFileError):
        return False
    return True

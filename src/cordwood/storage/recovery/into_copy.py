"""Recovery of a partition after a crash, into a copy: a broker's changes, applied to new files.

Data below the recovery point was flushed and is copied unchanged. Later segments, and those without an offset index,
are read batch by batch: complete batches stay, and their indexes, aborted transactions, leader epochs and producers are
rebuilt. The log ends at the first batch that is incomplete or damaged.

    copied     segments below the recovery point, and files outside segments
    rewritten  segments from the recovery point on; a segment with a too large span of offsets becomes several
    left out   files that `recovery` would delete; segments after an incomplete or damaged batch; all segments if the
               log then ends below its log start offset
    new        the producer snapshot of the log's end

Afterwards the partition is in the same state as after a clean shutdown.

Source: Kafka LogLoader.recoverLog, LogSegment.recover, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import ALL_READ_AND_WRITE, OWNER_WRITES, Link, TargetStore
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind, PartitionFile, Temporary, offset_name, parse_file
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import copy_file, read_file, read_leader_epochs, write_file
from cordwood.storage.log.loaded import LoadCut, ends_with_zeros, files_after_recovery
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, WindowReader
from cordwood.storage.recovery.rebuild import rewrite_segment
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS, Producers, headers_from, newest_snapshot

#: Size limit of a rebuilt index: enough for all entries of 2 GiB of batches, even if `segment.index.bytes` is smaller.
_INDEX_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery.

    Attributes:
        notes: data that was cut off, in words.
        complete: False if the partition could not be recovered and is unchanged.
        left_out_bytes: bytes of whole batches that the log lost because it was cut before them.
    """

    next_offset: int
    notes: tuple[str, ...] = ()
    complete: bool = True
    left_out_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The configs that recovery applies.

    Attributes:
        producer_expiration_ms: `producer.id.expiration.ms`.
    """

    index_interval_bytes: int = 4096
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class RecoveredFiles:
    """The new files of a recovered log, in another folder: segments, leader epochs, producer snapshots.

    Attributes:
        kept: base offsets of the log's segments that are not after a cut.
        segments: base offsets of the new segments, by base offset of the segment that was read.
        cuts: positions at which segments are cut.
    """

    next_offset: int
    notes: tuple[str, ...]
    kept: frozenset[int]
    segments: Mapping[int, tuple[int, ...]]
    cuts: tuple[LoadCut, ...] = ()

    def stays(self, log: LogView, name: str, file: PartitionFile | None) -> bool:
        """Return whether a file of the log stays unchanged.

        Args:
            file: the parsed name of the file once the log is loaded.
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
    """Write a partition in the state that a broker's next start would leave.

    Args:
        fs: store of the partition and of the copy.
        recovery_point: everything below this offset was flushed.
        now_ms: producers that have expired at this time are dropped.
        link: how to link unchanged logs instead of copying them.

    Raises:
        DataError: a segment holds offsets that don't belong there; the output is invalid.
    """
    new = rewrite_unflushed(fs, log, target, recovery_point=recovery_point, now_ms=now_ms, settings=settings)
    for source, name, file in files_after_recovery(log):
        if new.stays(log, source, file):
            is_log = file is not None and file.kind is FileKind.LOG
            copy_file(fs, f"{log.path}/{source}", f"{target}/{name}", link=link if is_log else None)
    return Recovered(new.next_offset, new.notes, left_out_bytes=_left_out(log, new))


def _left_out(log: LogView, new: RecoveredFiles) -> int:
    """Return the bytes of whole batches that a log lost; all bytes of a log that is emptied without a cut."""
    if new.cuts or new.kept:
        return sum(whole_behind(log, cut) for cut in new.cuts)
    return log.size_bytes


def whole_behind(log: LogView, cut: LoadCut) -> int:
    """Return the bytes of whole batches after a cut, plus all bytes of later segments if the cut ends the log."""
    at = next(at for at, segment in enumerate(log.segments) if segment.base_offset == cut.base_offset)
    found = sum(segment.size_bytes for segment in log.segments[at + 1 :]) if cut.is_end else 0
    with log.segments[at].open() as file:
        for item in WindowReader(file, Checks.WHOLE, base_offset=cut.base_offset, start=cut.position):
            if isinstance(item, BatchWindow):
                found += int(item.batches["size_bytes"][is_valid(item.batches)].sum(dtype=np.int64))
            del item
    return found


def rewrite_unflushed(
    fs: TargetStore,
    log: LogView,
    folder: str,
    *,
    recovery_point: int,
    now_ms: int,
    settings: RecoverySettings | None = None,
    whole_too: bool = True,
) -> RecoveredFiles:
    """Write the files that a broker would rewrite at a start after a crash.

    Args:
        folder: an existing directory without such files.
        recovery_point: everything below this offset was flushed.
        now_ms: producers that have expired at this time are dropped.
        whole_too: also write the `.log` of a segment without damage, besides its indexes.

    Raises:
        DataError: a segment holds offsets that don't belong there; the output is invalid.
        CorruptFileError: a transaction index has an unknown version, or the leader epochs cannot be read: a broker
            does not load such a log, and the contents of these files would be lost.
    """
    _check_versions(log)
    if not log.segments:
        return RecoveredFiles(_begin_empty(fs, log, folder), (), frozenset(), {})
    bases = [segment.base_offset for segment in log.segments]
    unflushed = max(0, bisect.bisect_right(bases, recovery_point) - 1)
    rewrite = _Rewrite(
        fs, log, folder, settings or RecoverySettings(), now_ms, frozenset(bases), read_leader_epochs(log.fs, log.path)
    )
    cuts: list[LoadCut] = []
    for at, segment in enumerate(log.segments):
        if at < unflushed and FileKind.OFFSET_INDEX in segment.files.indexes:
            rewrite.producers = None
            continue
        end = rewrite.add(segment, whole_too=whole_too)
        if end is None:
            continue
        cuts.append(LoadCut(segment.base_offset, end, is_end=at >= unflushed))
        if cuts[-1].is_end:
            left = log.segments[at + 1 :]
            if left:
                size = sum(behind.size_bytes for behind in left)
                rewrite.notes.append(f"{len(left)} segments behind the cut are left out, {size} bytes")
            bases = bases[: at + 1]
            break
    next_offset = rewrite.next_offset
    if next_offset < log.log_start_offset:
        return start_anew(fs, log, folder, clean_shutdown=False, notes=rewrite.notes, cuts=tuple(cuts))
    _write_epochs(fs, log, folder, rewrite.epochs, next_offset)
    if rewrite.producers is not None and next_offset > 0:
        _write_snapshot(fs, folder, rewrite.producers, next_offset)
    return RecoveredFiles(next_offset, tuple(rewrite.notes), frozenset(bases), rewrite.segments, tuple(cuts))


@dataclass
class _Rewrite:
    """A rewrite in progress, segment by segment.

    Attributes:
        bases: base offsets of all segments of the log.
        epochs: leader epochs after the last rewritten segment.
        producers: producers at the same point; None after a segment that is copied unread.
    """

    fs: TargetStore
    log: LogView
    folder: str
    settings: RecoverySettings
    now_ms: int
    bases: frozenset[int]
    epochs: LeaderEpochs
    producers: Producers | None = None
    segments: dict[int, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    next_offset: int = 0

    def add(self, segment: Segment, *, whole_too: bool) -> int | None:
        """Rewrite the next segment; return the position at which it is cut, or None if it is whole."""
        if self.producers is None:
            expiration_ms = self.settings.producer_expiration_ms
            self.producers = producers_at(self.log, segment.base_offset, self.now_ms, expiration_ms)
        writers, self.epochs, lost = rewrite_segment(
            segment, self._begin, self.producers, self.epochs, taken=self.bases
        )
        for writer in writers:
            # A cut changes the file, and so its modification time, which is used if no record has a timestamp.
            writer.finish(mtime_ns=self.now_ms * 1_000_000 if lost else segment.files.log.mtime_ns)
        self.segments[segment.base_offset] = tuple(writer.base_offset for writer in writers)
        self.next_offset = max(self.next_offset, writers[-1].next_offset)
        if len(writers) > 1:
            self.notes.append(f"{segment.path} becomes {len(writers)} segments, as its offsets span more than 2^31")
        elif not (whole_too or lost):
            self.fs.unlink(writers[0].path(FileKind.LOG))
        if not lost:
            return None
        position = sum(writer.size_bytes for writer in writers)
        if ends_with_zeros(segment, position):
            why = f"its batches end there, and {lost} zero bytes, preallocated or lost in a power cut, are left out"
        else:
            why = f"the batch there is not whole, and all {lost} bytes from there on are left out; `cordwood check` "
            why += "says what is behind it"
        self.notes.append(f"{segment.path} is cut at position {position}, as by a broker: {why}")
        return position

    def _begin(self, base_offset: int) -> SegmentWriter:
        assert self.producers is not None, "they are there before a segment is rewritten"
        log, first = self.log, self.log.segments[0]
        # A snapshot that is not at the start of an old segment is replaced, even if an earlier recovery wrote it.
        stays = base_offset in self.bases and _is_readable(log, offset_name(base_offset, FileKind.PRODUCER_SNAPSHOT))
        if base_offset != first.base_offset and not stays:
            _write_snapshot(self.fs, self.folder, self.producers, base_offset)
        if self.segments:
            # A broker writes a snapshot at each segment start and reloads it, dropping expired producers; do the same.
            self.producers.expire(now_ms=self.now_ms, expiration_ms=self.settings.producer_expiration_ms)
        limits = IndexLimits(self.settings.index_interval_bytes, _INDEX_BYTES)
        return SegmentWriter(self.fs, self.folder, base_offset, limits, mode=first.files.log.mode | OWNER_WRITES)


def start_anew(
    fs: TargetStore,
    log: LogView,
    folder: str,
    *,
    clean_shutdown: bool,
    notes: Sequence[str] = (),
    cuts: tuple[LoadCut, ...] = (),
) -> RecoveredFiles:
    """Write the empty log that replaces a log that ends below its start.

    All records below the log start offset are deleted for consumers, so the old log holds no readable record. A broker
    does the same, whether the log was shut down cleanly or not. Only after a clean shutdown it writes an empty producer
    snapshot, because it finds no snapshot at all then.

    Args:
        folder: an existing directory; its segments and snapshots are deleted.
        notes: data that was cut off before, in words.
        cuts: positions of these cuts.

    Source: Kafka LogLoader.load, deleteSegmentsIfLogStartGreaterThanLogEnd; UnifiedLog.rebuildProducerState.
    """
    _check_versions(log)
    for info in fs.list(folder):
        file = parse_file(info.name)
        if file is not None and file.kind in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT):
            fs.unlink(f"{folder}/{info.name}")
    start = _begin_empty(fs, log, folder)
    if clean_shutdown:
        _write_snapshot(fs, folder, Producers(), start)
    note = f"{log.path} ends below its log start offset {start}: its records were deleted, now its segments are, too"
    return RecoveredFiles(start, (*notes, note), frozenset(), {}, cuts)


def _begin_empty(fs: TargetStore, log: LogView, folder: str) -> int:
    """Write an empty log that begins at the log start offset; return this offset."""
    start = log.log_start_offset
    like = log.segments[0].files.log if log.segments else log.fs.stat(log.path)
    SegmentWriter(fs, folder, start, IndexLimits(), mode=like.mode & ALL_READ_AND_WRITE | OWNER_WRITES).finish()
    _write_epochs(fs, log, folder, LeaderEpochs(), start)
    return start


def complete_indexes(
    fs: TargetStore, log: LogView, copy: str, *, now_ms: int, settings: RecoverySettings | None = None
) -> None:
    """Build the indexes of segments that lack an offset index; skip damaged segments.

    Args:
        log: the log that was copied; only if one of its segments lacks an offset index, the copy is listed.
        copy: path of the copy, which may have fewer of these segments.
    """
    if not any(map(_lacks_index, log.segments)):
        return
    log = LogView(copy, fs=fs, log_start_offset=log.log_start_offset)
    for _, paths in rewrite_indexes(fs, log, copy, now_ms=now_ms, settings=settings, suffix=Temporary.TMP):
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
    """Rebuild the indexes of segments without an offset index.

    Yields:
        (segment, paths of its new indexes); damaged segments are skipped.
    """
    settings = settings or RecoverySettings()
    limits = IndexLimits(settings.index_interval_bytes, _INDEX_BYTES)
    before: tuple[Producers, int] | None = None
    for segment in log.segments:
        if not _lacks_index(segment):
            continue
        producers = producers_at(log, segment.base_offset, now_ms, settings.producer_expiration_ms, before)
        begin = functools.partial(SegmentWriter, fs, folder, limits=limits, suffix=suffix)
        writers, _, lost = rewrite_segment(segment, begin, producers, LeaderEpochs(), taken=())
        logs = [writer.path(FileKind.LOG) for writer in writers]
        paths = [path for writer in writers for path in writer.finish(mtime_ns=segment.files.log.mtime_ns)]
        whole = not lost and len(writers) == 1
        indexes = [path for path in paths if path not in logs]
        for path in logs if whole else paths:
            fs.unlink(path)
        before = (producers, writers[-1].next_offset) if whole else None
        if whole:
            yield segment, indexes


def _lacks_index(segment: Segment) -> bool:
    return FileKind.OFFSET_INDEX not in segment.files.indexes


def producers_at(
    log: LogView, offset: int, now_ms: int, expiration_ms: int, before: tuple[Producers, int] | None = None
) -> Producers:
    """Return producer state at an offset: the newest readable snapshot up to it, plus the batches between.

    Args:
        before: the state at an earlier replayed offset; used unless a snapshot is newer.
    """
    producers, start = newest_snapshot(log, offset, now_ms=now_ms, expiration_ms=expiration_ms)
    if before is not None and start <= before[1]:
        producers, start = before
    for batches in headers_from(log, start, offset):
        producers.replay(batches[batches["last_offset"] < offset])
    return producers


def _check_versions(log: LogView) -> None:
    """Raise for a transaction index of an unknown version, as a broker does, even if it will be rebuilt.

    A broker reads no other index of a segment that lacks its offset index.
    """
    for segment in log.segments:
        if FileKind.OFFSET_INDEX in segment.files.indexes:
            segment.transaction_index()


def _write_epochs(fs: TargetStore, log: LogView, target: str, epochs: LeaderEpochs, next_offset: int) -> None:
    entries = tuple(entry for entry in epochs.entries if entry.start_offset < next_offset)
    if entries or log.fs.exists(f"{log.path}/{FileKind.LEADER_EPOCHS}"):
        write_file(fs, f"{target}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(entries))


def _write_snapshot(fs: TargetStore, target: str, producers: Producers, offset: int) -> None:
    name = offset_name(offset, FileKind.PRODUCER_SNAPSHOT)
    write_file(fs, f"{target}/{name}", producer_state.encode_rows(producers.rows()))


def _is_readable(log: LogView, name: str) -> bool:
    try:
        producer_state.decode_rows(read_file(log.fs, f"{log.path}/{name}"))
    except (FileNotFoundError, CorruptFileError):
        return False
    return True

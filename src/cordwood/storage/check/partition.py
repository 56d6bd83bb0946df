"""Checks one partition: file names, segments with their indexes, producer snapshots and leader epochs.

The log is read once; a quick check reads only parts of its large segments (`sampling`). State across segments (offsets,
transactions, producers, leader epochs) is carried from one to the next. After a damaged segment, state that depends on
it is no longer compared, so that one error is reported once.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol, TypeVar

import numpy as np

from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, TextProblem
from cordwood.common.types import NONE, ControlType
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.layout import BatchRows, is_control
from cordwood.storage.check import state
from cordwood.storage.check.batches import LogCheck, LostTail, Observer, SegmentFile
from cordwood.storage.check.findings import NO_START, OFFLINE, STOPS, Findings, Kind, Severity
from cordwood.storage.check.indexes import (
    Handling,
    KeyIndexes,
    OffsetIndexCheck,
    OpenTransactions,
    TimeIndexCheck,
    TransactionIndexCheck,
)
from cordwood.storage.check.sampling import Looked, Quick, SegmentSample, sample_segment
from cordwood.storage.formats import log_configs, offset_index, properties, quorum_state, time_index
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    FIXED_KINDS,
    DirectoryState,
    FileKind,
    PartitionFile,
    Temporary,
    parse_file,
)
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.loaded import Stop
from cordwood.storage.log.recovery import INDEX_KINDS, RecoveryReason, Verb
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import NO_FOOTER, snapshot_offsets

_T = TypeVar("_T")
_R = TypeVar("_R")


class InThreads(Protocol):
    """Calls a function with each item, perhaps in threads; the results are in the order of the items."""

    def __call__(self, work: Callable[[_T], _R], items: Iterable[_T], /) -> Iterator[_R]:
        """Begin the calls."""
        ...


class PartitionCheck:
    """Checks one partition.

    Attributes:
        log_end_offset: after `run`: end offset of the log, as far as it can be read.
        damaged: after `run`: the log has errors, so its end is unknown.
        topic_id: after `run`: topic id in `partition.metadata`, or None.
        names_topic: after `run`: `partition.metadata` exists, readable or not.
        loaded_end: after `run`: end offset that a load finds from the last entry of the offset index; None if a load
            does not use that entry, or fails.
        holes: after `run`: offsets [first, behind) missing in front of a segment's first batch, or between batches of
            the active segment, and the segment's path.
        has_inner_holes: after `run`: offsets are missing in a closed segment, as after a clean.
        newest_ms: after `run`: largest timestamp of each segment's records, by base offset.
        first_epoch_start: after `run`: start offset of the first leader epoch. Retention moves it with the log's start.
        lost: after `run`: data that a recovery cuts off.
        ends: after `run`: the end of the log was found, so `log_end_offset` counts.
        looked: parts of the log that a quick check left out.
        unread_remote: after `run`: errors from the tier, by base offset of the segment that could not be read.
    """

    def __init__(
        self,
        log: LogView,
        stop: Stop,
        findings: Findings,
        progress: Callable[[int], None],
        quick: Quick | None = None,
        in_threads: InThreads = map,
    ) -> None:
        """Prepare the check.

        Args:
            quick: read only parts of large segments; None: read everything.
            in_threads: calls a function with each of many segments, as `map` does.
        """
        self.log = log
        # A broker recovers the metadata log at every start, so its start depends on all of it.
        self._quick = None if quick is None or is_cluster_metadata(log) else quick
        self._in_threads = in_threads
        self.looked = Looked()
        self.unread_remote: dict[int, DataError] = {}
        self.ends = True
        self.stop = stop
        self.findings = findings
        self.progress = progress
        self.log_end_offset = 0
        self.topic_id: str | None = None
        self.names_topic = False
        self.loaded_end: int | None = None
        self.first_epoch_start: int | None = None
        self.holes: list[tuple[int, int, str]] = []
        self.has_inner_holes = False
        self.newest_ms: dict[int, int] = {}
        self._segment_end: int | None = None
        self._is_behind_jump = False
        self._unread: set[str] = set()
        self._entries = {info.name: info for info in log.entries if not info.is_directory}
        self._sizes = {segment.base_offset: segment.size_bytes for segment in log.segments}
        self._transactions = OpenTransactions()
        self._epochs = state.EpochCheck(log.log_start_offset)
        self._key_indexes = KeyIndexes(log.fs, log.path, findings)
        self.lost = LostTail()
        self.damaged = False
        bases = [segment.base_offset for segment in log.segments]
        point = stop.recovery_point
        #: Base offset of the first segment that the next load recovers.
        self._rebuilt_from = (
            None if point is None else max((b for b in bases if b <= point), default=bases[0] if bases else 0)
        )

    def run(self, *, only: int | None = None) -> None:
        """Report all errors.

        Args:
            only: the base offset of a segment: check only the files of this segment.
        """
        if only is None:
            self._names()
            self._small_files()
            self._key_indexes.check_names(self._sizes)
        segments = self.log.segments
        if not segments and only is None and not self.stop.live:
            self.findings.add(
                Kind.NO_SEGMENT,
                self.log.path,
                "there is no .log file in it",
                severity=Severity.NOTE
                if self.stop.set_aside
                else Severity.RECOVERY
                if self.stop.recovery_point == 0
                else None,
                meaning="a broker does not serve this directory" if self.stop.set_aside else None,
            )
        snapshots = state.SnapshotCheck([], self.findings) if only is not None else self._snapshots()
        chosen = [segment for segment in segments if only in (None, segment.base_offset)]
        samples = self._in_threads(self._sample, chosen) if self._quick is not None else repeat(None)
        for segment, sample in zip(chosen, samples, strict=False):
            try:
                self._segment(segment, snapshots, sample)
            except OSError as error:
                self._unreadable(segment.path, error)
                self.damaged = True
            except DataError as error:
                self.unread_remote[segment.base_offset] = error
                self.damaged = True
            if self.damaged:
                snapshots.stop()
        self.lost.tell(self.findings)
        if only is not None:
            return
        crashed, live = self.stop.crashed, self.stop.live
        end = self.log_end_offset if self.ends else MAX_OFFSET
        snapshots.end(end, damaged=self.damaged, live=live, crashed=crashed)
        path = f"{self.log.path}/{FileKind.LEADER_EPOCHS}"
        data = self._read(path)
        entries = None if data is None else state.read_epochs(data, path, self.findings)
        if entries:
            self.first_epoch_start = entries[0].start_offset
        if entries is not None or (data is None and path not in self._unread):
            self._epochs.end(path, entries, end, self.findings, damaged=self.damaged, crashed=crashed, live=live)

    # ---- names -------------------------------------------------------------------------------------------------------

    def _names(self) -> None:
        log = self.log
        for name in log.recovery.foreign:
            path = f"{log.path}/{name}"
            if name in self._entries and parse_file(name) is None:
                self.findings.add(Kind.BAD_FILE_NAME, path, "it ends like a data file, but no offset starts its name")
            elif not (self.stop.live and name.endswith(Temporary.TMP)):
                tmp = name.endswith(Temporary.TMP) and name.removesuffix(Temporary.TMP) in _FIXED_NAMES
                self.findings.add(
                    Kind.LEFTOVER if tmp else Kind.FOREIGN_FILE,
                    path,
                    "a checkpoint that was being written" if tmp else "not a file that Kafka knows",
                    meaning="the next write of the checkpoint replaces it" if tmp else None,
                )
        for info in log.entries:
            parsed = None if info.is_directory else parse_file(info.name)
            if parsed is not None and parsed.kind is not FileKind.FOREIGN and parsed.name != info.name:
                what = f"Kafka would name it {parsed.name}"
                self.findings.add(Kind.NAME_NOT_CANONICAL, f"{log.path}/{info.name}", what, offset=parsed.offset)
        if self.stop.live:
            return
        for info in log.entries:
            file = parse_file(info.name) if info.is_directory else None
            index = file is not None and file.kind in INDEX_KINDS and file.offset in self._sizes
            if file is not None and (index or file.kind in _FIXED_KINDS) and file.name == info.name:
                kind = Kind.LOG_CONFIGS_UNREADABLE if file.kind is FileKind.LOG_CONFIGS else Kind.UNREADABLE
                what = "a directory where a file should be"
                self.findings.add(
                    kind,
                    f"{log.path}/{info.name}",
                    what,
                    offset=file.offset if index else None,
                    meaning=_OPENED_LATE if self._is_opened_late(file) else None,
                )
        for action in log.recovery.actions:
            path = f"{log.path}/{action.file}"
            offset = parsed.offset if (parsed := parse_file(action.file)) and parsed.offset >= 0 else None
            if action.verb is Verb.RENAME:
                self.findings.add(
                    Kind.SWAP_UNFINISHED, path, f"{action.why}; it will be {action.target}", offset=offset
                )
            elif action.verb is Verb.REBUILD:
                self._index_missing(path, offset)
            elif action.reason is RecoveryReason.NO_LOG:
                # A broker renames the log of a deleted segment first; if the broker is interrupted, the indexes keep
                # their names. A new segment has empty indexes; in a crash, they may survive while the log is lost.
                going = f"{action.file.partition('.')[0]}{FileKind.LOG}{Temporary.DELETED}"
                is_deleted = any(info.name == going for info in log.entries)
                expected = is_deleted or (self.stop.crashed and not any(self._read(path) or b""))
                severity = Severity.RECOVERY if expected else None
                self.findings.add(Kind.INDEX_WITHOUT_LOG, path, action.why, offset=offset, severity=severity)
            elif not (self.stop.clean and action.file.endswith(Temporary.DELETED)):
                # A clean shutdown does not wait for scheduled deletions, so .deleted files are normal after it.
                self.findings.add(Kind.LEFTOVER, path, action.why, offset=offset)

    def _is_opened_late(self, file: PartitionFile) -> bool:
        """Return whether a file is a time index that a load does not open.

        Source: Kafka LogSegment.sanityCheck, LazyIndex.
        """
        older = [one.base_offset for one in self.log.segments[:-1] if FileKind.OFFSET_INDEX in one.files.indexes]
        is_recovered = self._rebuilt_from is not None and file.offset >= self._rebuilt_from
        return file.kind is FileKind.TIME_INDEX and file.offset in older and not is_recovered

    def _index_missing(self, path: str, offset: int | None) -> None:
        if offset is not None and self._sizes.get(offset, 0) > 0:  # an empty segment has no index before it is used
            self.findings.add(Kind.INDEX_MISSING, path, "missing", offset=offset)

    # ---- small files -------------------------------------------------------------------------------------------------

    def _small_files(self) -> None:
        path = f"{self.log.path}/{FileKind.PARTITION_METADATA}"
        data = self._read(path)
        self.names_topic = data is not None or path in self._unread or self._is_directory(path)
        if data is not None:
            try:
                self.topic_id = properties.encode_id(properties.decode_partition_metadata(data, path).topic_id)
            except CorruptFileError as error:
                meaning = OFFLINE if error.kind is TextProblem.MALFORMED else STOPS
                self.findings.add(Kind.PARTITION_METADATA, path, error.what, position=error.position, meaning=meaning)
        path = f"{self.log.path}/{FileKind.LOG_CONFIGS}"
        data = self._read(path, Kind.LOG_CONFIGS_UNREADABLE)
        if data is not None:
            try:
                log_configs.decode(data, path)
            except CorruptFileError as error:
                self.findings.add(Kind.LOG_CONFIGS_UNREADABLE, path, error.what, position=error.position)
        path = f"{self.log.path}/{FileKind.QUORUM_STATE}"
        data = self._read(path)
        if data is not None:
            try:
                quorum_state.decode(data, path)
            except CorruptFileError as error:
                self.findings.add(Kind.QUORUM_STATE, path, error.what, position=error.position)
        snapshots = snapshot_offsets(self.log)
        newest = max(snapshots, default=NONE)
        for offset, name in snapshots.items():
            path = f"{self.log.path}/{name}"
            check_metadata_snapshot(self.log.fs, path, self.findings, self.progress, is_used=offset == newest)

    def _is_directory(self, path: str) -> bool:
        return any(info.is_directory and info.name == posixpath.basename(path) for info in self.log.entries)

    def _snapshots(self) -> state.SnapshotCheck:
        files = {}
        for offset, info in self.log.recovery.snapshots.items():
            path = f"{self.log.path}/{info.name}"
            data = self._read(path)
            if data is not None:
                files[offset] = (path, data)
        snapshots = state.decode_snapshots(files, self.findings, rebuilt_above=self._rebuilt_from)
        return state.SnapshotCheck(snapshots, self.findings)

    def _read(self, path: str, unreadable: Kind = Kind.UNREADABLE) -> bytes | None:
        """Read a small file; return None if it is missing or unreadable. Report an unreadable one."""
        if posixpath.basename(path) not in self._entries:
            return None
        try:
            data = read_file(self.log.fs, path)
        except OSError as error:
            self._unreadable(path, error, unreadable)
            return None
        except DataError as error:
            self._unread.add(path)
            self.findings.add(Kind.TIER_OBJECT, path, error.what)
            return None
        self.progress(len(data))
        return data

    def _unreadable(self, path: str, error: OSError, kind: Kind = Kind.UNREADABLE) -> None:
        self._unread.add(path)
        if not (self.stop.live and isinstance(error, FileNotFoundError)):
            self.findings.add(kind, path, why_unreadable(error))

    # ---- segments ----------------------------------------------------------------------------------------------------

    def _situation(self, segment: Segment) -> tuple[SegmentFile, Handling]:
        """Return what a broker did with a segment and its indexes, and will do with them."""
        stop, base, following = self.stop, segment.base_offset, segment.following
        in_use = following is None
        rebuilt = self._rebuilt_from is not None and base >= self._rebuilt_from
        unknown = not stop.live and not stop.clean and not stop.crashed
        unopened = FileKind.OFFSET_INDEX not in segment.files.indexes
        # A load that completes a swap creates an empty index, and trusts it.
        place = SegmentFile(
            segment.path,
            base,
            None if following is None else following.base_offset,
            live=stop.live,
            rebuilt=rebuilt or (unknown and in_use),
            closed=stop.clean,
            recovered=rebuilt or (unopened and segment.size_bytes > 0 and not segment.path.endswith(Temporary.SWAP)),
            unread=stop.crashed and not rebuilt,
            flushed_offset=stop.recovery_point or 0,
        )
        rebuilt |= unopened and segment.size_bytes > 0
        return place, Handling(rebuilt, stop.live, in_use, stop.clean, stop.set_aside, unopened)

    def _sample(self, segment: Segment) -> SegmentSample | None:
        assert self._quick is not None, "only a quick check reads a sample"
        try:
            return sample_segment(segment, *self._situation(segment), self._quick)
        except DataError:
            return None  # an object in a tier is damaged, and so reading the whole segment reports it

    def _segment(self, segment: Segment, snapshots: state.SnapshotCheck, sample: SegmentSample | None) -> None:
        stop, base = self.stop, segment.base_offset
        place, handling = self._situation(segment)
        aborted = self._transaction_index(segment, place.end_offset, handling)
        self._epochs.segment_path = segment.path
        if sample is not None and sample.is_doubtful and self._quick is not None:
            sample = None if self._quick.confirms(segment.size_bytes) else sample
        if sample is None:
            check, offsets, times = self._read_whole(segment, place, handling, [aborted, self._epochs, snapshots])
        else:
            check, offsets, times = sample.log, sample.offsets, sample.times
            self._take(segment, sample, aborted, snapshots)
            if sample.is_doubtful or not sample.reaches_end:
                self.ends &= place.end_offset is not None
                self._segment_end = place.end_offset
                self._is_behind_jump = True
                return
        if handling.in_use and stop.clean and offsets is not None:
            with segment.open() as file:
                self._end_as_loaded(file, segment)
        self._hole(segment, check)
        if handling.in_use and stop.crashed:
            self._compare_end(segment, check, [one.end_offset for one in (offsets, times) if one is not None])
        if times is not None:
            self.newest_ms[base] = times.largest_ms
        self.damaged |= check.damaged
        aborted.end()
        aborted.close(log_damaged=self.damaged)
        self.log_end_offset = max(base, check.last_offset + 1)

    def _read_whole(
        self, segment: Segment, place: SegmentFile, handling: Handling, watching: list[Observer]
    ) -> tuple[LogCheck, OffsetIndexCheck | None, TimeIndexCheck | None]:
        """Read a whole segment and its indexes; report its errors, and let observers of the log watch."""
        check = LogCheck(place, self.findings, self.lost)
        offsets = self._offset_index(segment, handling)
        times = self._time_index(segment, handling)
        keys = self._key_indexes.of(segment.base_offset)
        watching = [*watching, *(one for one in (times, keys) if one is not None)]
        with segment.open() as file:
            check.run(file, watching, [offsets] if offsets is not None else [], self.progress)
            if keys is not None and not check.damaged:
                keys.end(file, segment.base_offset, check.last_offset)
        for index in (offsets, times):
            if index is not None:
                index.end()
                index.close(log_damaged=check.damaged)
        return check, offsets, times

    def _take(
        self,
        segment: Segment,
        sample: SegmentSample,
        aborted: TransactionIndexCheck,
        snapshots: state.SnapshotCheck,
    ) -> None:
        """Add a sample of a segment to the state of the log."""
        looked = self.looked
        looked.sampled += 1
        looked.sampled_bytes += segment.size_bytes
        looked.recovered_bytes += segment.size_bytes if self._situation(segment)[0].recovered else 0
        if sample.is_doubtful:
            looked.doubtful.append(segment.path)
            self.damaged = True
            return
        if not sample.reaches_end:
            looked.endless.append(segment.path)
        self.findings.merge(sample.findings)
        for number, batches in enumerate(sample.parts):
            if number in sample.jumps or (number == 0 and self._is_behind_jump):
                aborted.jump()
                snapshots.jump()
            aborted.add(batches)
            self._epochs.add(batches)
            snapshots.add(batches)
            if self.lost.path is not None:
                self.lost.is_sampled = True
                self.lost.add(batches)
                self.lost.records += int(np.maximum(batches["record_count"], 0).sum())
        self._is_behind_jump = False

    def _end_as_loaded(self, file: ReadableFile, segment: Segment) -> None:
        """Find the log's end as a load does after a clean shutdown: it trusts the last entry of the offset index."""
        count, last = segment.last_entry(FileKind.OFFSET_INDEX)
        if count < segment.files.indexes[FileKind.OFFSET_INDEX].size_bytes // offset_index.ENTRY.itemsize:
            return  # zeros behind the entries are read as an entry for the segment's start, so a load reads all of it
        position = 0 if last is None else max(0, int(last["position"]))
        wanted = segment.base_offset + (0 if last is None else int(last["offset"]))
        try:
            self.loaded_end = end_behind(file, position, wanted, segment.base_offset)
        except CorruptFileError as error:
            if not self.findings.worsen(segment.path, error.position, STOPS):
                self.findings.add(Kind.NOT_A_BATCH, segment.path, error.what, position=error.position, meaning=STOPS)

    def _compare_end(self, segment: Segment, check: LogCheck, ends: Sequence[int]) -> None:
        """Report records that both indexes of the active segment point at, and that a crash took without a trace."""
        end = check.last_offset + 1
        is_whole = check.ends_valid and check.end_position == segment.size_bytes
        if is_whole and len(ends) == 2 and ends[0] == ends[1] >= end:
            what = f"its indexes point at offset {ends[0]}, but it ends at {end}"
            self.findings.add(Kind.CHECKPOINT_BEYOND_END, segment.path, what, offset=end)

    def _hole(self, segment: Segment, check: LogCheck) -> None:
        """Note offsets that are missing in front of a segment, or in front of its first batch."""
        first = check.first_offset
        if self._segment_end is not None and segment.base_offset > self._segment_end:
            self.holes.append((self._segment_end, segment.base_offset, segment.path))
        elif first is not None and first > max(segment.base_offset, self._segment_end or 0):
            self.holes.append((segment.base_offset, first, segment.path))
        self.has_inner_holes |= check.has_holes
        if check.hole is not None and segment.following is None:
            self.holes.append((*check.hole, segment.path))  # no clean has touched the active segment
        elif check.hole is not None:
            self.has_inner_holes = True
        self._segment_end = max(segment.base_offset, check.last_offset + 1)

    def _index_data(self, segment: Segment, kind: FileKind) -> tuple[str, bytes | None]:
        """Return an index's path and bytes. Bytes are None if it is missing, or unreadable (`_unread` has its path)."""
        name = PartitionFile(kind, segment.base_offset).name
        path = segment.index_path(kind) or f"{segment.directory}/{name}"
        try:
            data = segment.read_index(kind)
        except FileNotFoundError:
            data = None
        except OSError as error:
            self._unreadable(path, error)
            data = None
        self.progress(len(data or b""))
        return path, data

    def _offset_index(self, segment: Segment, handling: Handling) -> OffsetIndexCheck | None:
        path, data = self._index_data(segment, FileKind.OFFSET_INDEX)
        if data is None:
            return None
        index = offset_index.decode(data, segment.base_offset)
        return OffsetIndexCheck(index, path, self.findings, handling)

    def _time_index(self, segment: Segment, handling: Handling) -> TimeIndexCheck | None:
        path, data = self._index_data(segment, FileKind.TIME_INDEX)
        if path in self._unread:
            return None
        index = None if data is None else time_index.decode(data, segment.base_offset)
        return TimeIndexCheck(index, path, self.findings, handling)

    def _transaction_index(self, segment: Segment, end_offset: int | None, handling: Handling) -> TransactionIndexCheck:
        path, data = self._index_data(segment, FileKind.TRANSACTION_INDEX)
        data = None if path in self._unread else data or b""
        return TransactionIndexCheck(
            data, path, segment.base_offset, end_offset, self.findings, self._transactions, handling
        )


_FIXED_KINDS = (FileKind.LEADER_EPOCHS, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE, FileKind.LOG_CONFIGS)
_OPENED_LATE = "a look-up by time in it fails, and so does retention by time"
_FIXED_NAMES = tuple(map(str, FIXED_KINDS))


def end_behind(file: ReadableFile, position: int, wanted: int, base_offset: int) -> int:
    """Return the offset behind the last batch that Kafka finds when it reads a segment from an index entry on.

    Args:
        position, wanted: position and offset in the entry.
        base_offset: base offset of the segment; returned if no batch reaches `wanted`.

    Raises:
        CorruptFileError: Kafka fails at the bytes there, because they are not a batch.

    Source: Kafka LogSegment.readNextOffset, FileLogInputStream.nextBatch.
    """
    end, size, found = base_offset, file.size(), False
    while position + _HEAD_BYTES <= size:
        head = file.read(position, _HEAD_BYTES + 10)
        length = int.from_bytes(head[8:12], "big", signed=True)
        if length < _LEAST_BYTES:
            what = f"a batch of {length} bytes where the offset index has one; a load fails at it"
            raise CorruptFileError(what, path=file.path, position=position)
        if position + 12 + length > size:
            break
        last = int.from_bytes(head[:8], "big", signed=True)
        if head[16] >= 2:
            last += int.from_bytes(head[23:27], "big", signed=True)
        found |= last >= wanted
        if found:
            end = last + 1
        position += 12 + length
    return end


#: Bytes of a batch up to its magic, and the smallest size that Kafka accepts in its size field.
_HEAD_BYTES, _LEAST_BYTES = 17, 14


class _SnapshotBatches:
    """Observes the kinds of batches in a snapshot.

    Attributes:
        has_header: its first batch is a snapshot header.
        has_records: it has a batch of records; the first of these contains the metadata.version.
        has_footer: its last batch is a snapshot footer.
    """

    has_header = has_records = has_footer = False
    _is_begun = False

    def add(self, batches: BatchRows) -> None:
        """Add the next valid batches."""
        types = batches["control_type"]
        self.has_header |= not self._is_begun and types[0] == ControlType.SNAPSHOT_HEADER
        self._is_begun = True
        self.has_records |= not is_control(batches).all()
        self.has_footer = types[-1] == ControlType.SNAPSHOT_FOOTER


def check_metadata_snapshot(
    fs: Store, path: str, findings: Findings, progress: Callable[[int], None], *, is_used: bool = True
) -> None:
    """Check a KRaft snapshot, which has batches like a log, with offsets from 0.

    A broker needs its header and its first batch of records. If only the footer is missing, it uses the rest.

    Args:
        is_used: a broker reads the snapshot when it starts, because it is the newest one.

    Source: Kafka RecordsSnapshotReader.lastContainedLogTimestamp, FeaturesImage.write.
    """
    own, seen = Findings(), _SnapshotBatches()
    try:
        with fs.open(path) as file:
            LogCheck(SegmentFile(path), own, LostTail()).run(file, [seen], [], progress)
        if not (own.found or (seen.has_header and seen.has_records)):
            own.add(Kind.METADATA_LOG, path, NO_FOOTER)
        elif not (own.found or seen.has_footer):
            meaning = "a broker takes it for whole; Cordwood reads an older snapshot and the log, where there is one"
            findings.add(Kind.METADATA_LOG, path, NO_FOOTER, severity=Severity.NOTE, meaning=meaning)
    except OSError as error:
        own.add(Kind.UNREADABLE, path, why_unreadable(error))
    for one in own.take():
        severity = Severity.DAMAGE if is_used else Severity.NOTE
        meaning = NO_START if is_used else "a broker does not read this one at its start"
        findings.add(one.kind, path, one.what, position=one.position, severity=severity, meaning=meaning)


def open_log(fs: Store, path: str, *, live: bool, log_start_offset: int | None, findings: Findings) -> LogView | None:
    """Open a partition to check it; if that fails, report it and return None."""
    try:
        return LogView(path, fs=fs, live=live, log_start_offset=log_start_offset)
    except NotFoundError as error:
        if not live:
            findings.add(Kind.UNREADABLE, path, str(error))
    except OSError as error:
        findings.add(Kind.UNREADABLE, error.filename or path, why_unreadable(error))
    return None


def is_cluster_metadata(log: LogView) -> bool:
    """Return whether this is KRaft's metadata log, which is recovered at every start."""
    return log.name is not None and log.name.topic_partition.topic == CLUSTER_METADATA_TOPIC


def is_deleted(log: LogView) -> bool:
    """Return whether the directory is scheduled for deletion."""
    return log.name is not None and log.name.state is DirectoryState.DELETED

"""Loads a partition's directory as a live log: after a clean shutdown, or after a crash.

    1  remove leftovers, finish interrupted swaps           `plan_recovery` decides; this module executes
    2  open segments                                        recover a segment without an offset index
    3  after a crash: recover segments from the recovery    verify every checksum, rebuild indexes and producers,
       point on                                             cut off an invalid tail and all segments after it
    4  leader epochs, log start, producer state             cut to the offsets of the log

Source: Kafka LogLoader, LogSegment.recover, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cordwood.common.errors import (
    BadNameError,
    CorruptFileError,
    DataError,
    IndexProblem,
    LogSegmentOffsetOverflowError,
)
from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.layout import BatchRows
from cordwood.live import work_folder
from cordwood.live.environment import Checkpointed, LogConfig, LogEnvironment
from cordwood.live.partition_files import LeaderEpochCache
from cordwood.live.producer_state import DecodedMarker, ProducerSnapshots, ProducerState, read_marker
from cordwood.live.segment import LogSegment
from cordwood.live.segments import LogSegments
from cordwood.live.validation import read_records
from cordwood.record.batch import Batch, to_batches
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import finish_interrupted, swap_in
from cordwood.storage.formats.filenames import FileKind, Temporary, parse_file
from cordwood.storage.log.recovery import Recovery, SegmentFiles, Verb, plan_recovery
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.segment_writer import IndexLimits, SegmentIndexes, SegmentWriter
from cordwood.storage.recovery.rebuild import begun_epochs, index_segment, write_split


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records that a load removed from a log.

    Attributes:
        end_offset: end of the removed offsets; None if it is unknown.
        segments: number of segments that were removed whole.
    """

    why: str
    start_offset: int
    end_offset: int | None
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LogParts:
    """A loaded log.

    Attributes:
        segments: at least one segment.
        snapshots: the producer state at the end of the log.
        discarded: segments to remove: they follow a damaged one, or end before the log start offset.
        lost: records that the load removed.
    """

    directory: str
    segments: LogSegments
    snapshots: ProducerSnapshots
    epochs: LeaderEpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    discarded: tuple[LogSegment, ...]
    lost: tuple[LostRecords, ...]


# ---- replay ----------------------------------------------------------------------------------------------------------


def _of_producers(segment: LogSegment, rows: BatchRows) -> Iterator[tuple[Batch, DecodedMarker | None]]:
    """Yield the batches with a producer id, each with its decoded marker or None."""
    for batch in to_batches(rows[rows["producer_id"] >= 0]):
        marker = None
        if batch.is_control and batch.record_count != 0:
            entry = segment.read_bytes(batch.position, batch.size_bytes)
            marker = read_marker(read_records(entry, batch._replace(position=0)))
        yield batch, marker


def rebuild_producer_state(
    snapshots: ProducerSnapshots,
    segments: LogSegments,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    *,
    after_clean_shutdown: bool = False,
) -> None:
    """Bring the producer state to an offset: load the newest snapshot and replay the batches after it.

    Also write snapshots at the base offsets of the last two segments, and at the end.
    """
    state = snapshots.state
    bases = [segment.base_offset for segment in segments.all[-2:]]
    if snapshots.latest_offset is None and after_clean_shutdown:
        # An upgrade from a version without snapshots: begin without producers, and read no batches.
        for offset in (*bases, end_offset):
            state.end_offset = offset
            snapshots.take()
        return
    was_empty_before = state.is_empty and state.end_offset >= end_offset
    snapshots.truncate_and_reload(log_start_offset, end_offset, now_ms)
    if end_offset > state.end_offset and not was_empty_before:
        last = segments.floor(end_offset)
        for segment in segments.values(state.end_offset, end_offset):
            start = max(segment.base_offset, state.end_offset, log_start_offset)
            state.end_offset = start
            if segment.base_offset in bases:
                snapshots.take()
            begin = segment.find(start)
            end = segment.find(end_offset) if segment is last else None
            if begin is not None:
                for rows in segment.headers(begin.position, None if end is None else end.position):
                    for _ in state.take(_of_producers(segment, rows)):
                        pass  # the transaction index has its entry already
    state.end_offset = end_offset
    snapshots.take()


def _discard(segments: Iterable[LogSegment]) -> None:
    """Mark the files of segments as deleted."""
    for segment in segments:
        segment.change_suffix(Temporary.DELETED)


# ---- loading ---------------------------------------------------------------------------------------------------------


@dataclass
class Loader:
    """Loads one partition.

    Attributes:
        epochs: its leader epochs, as read from their file.
        on_recovered: called with the number of segments that are still to be recovered.
    """

    environment: LogEnvironment
    directory: str
    config: LogConfig
    epochs: LeaderEpochCache
    new_state: ProducerState
    checkpointed: Checkpointed
    on_recovered: Callable[[int], None]
    _snapshots: ProducerSnapshots = field(init=False)
    _lost: list[LostRecords] = field(default_factory=list)

    @property
    def fs(self) -> LocalFileSystem:
        """The file system of the partition."""
        return self.environment.fs

    def _now_ms(self) -> int:
        return self.environment.clock()

    def load(self) -> LogParts:
        """Load the partition.

        Raises:
            OSError: a file cannot be read, written or renamed.
            CorruptFileError: the transaction index has an unknown version, or the leader epochs cannot be read.
            BadNameError: a file has a log file's suffix, but no offset in its name.
        """
        plan = self._plan()
        if any(action.verb is not Verb.REBUILD for action in plan.actions):
            finish_interrupted(self.fs, self.directory)
        snapshots = ProducerSnapshots(self.fs, self.directory, self.new_state, list(plan.snapshots))
        self._snapshots = snapshots
        segments = LogSegments()
        while True:
            try:
                self._open_segments(segments, plan.segments)
                discarded, next_offset = self._recover(segments)
                break
            except LogSegmentOffsetOverflowError:
                split = [segment for segment in segments.all if self._split_overflowed(segment)]
                if not split:
                    raise
                plan = self._plan()
        known = self.checkpointed
        start, recovery_point = known.log_start_offset, known.recovery_point
        if len(segments) and next_offset < start:
            first, count = segments.first.base_offset, len(segments) + len(discarded)
            size = sum(segment.size_bytes for segment in (*segments.all, *discarded))
            self._lost = [
                LostRecords(f"as the log ends below its start offset {start}", first, next_offset, count, size)
            ]
            _discard(segments.all)
            discarded += segments.all
            segments.replace(removed=[segment.base_offset for segment in segments.all])
            self.epochs.clear()
            snapshots.truncate_fully_and_start_at(start)
        if not len(segments):
            new = LogSegment(self.environment, self.directory, start, self.config, is_new=True)
            segments.replace([new])
            next_offset = start
        if known.clean_shutdown and not discarded:
            recovery_point = next_offset
        segments.active.resize_indexes(self.config.segment_index_bytes)
        self.epochs.truncate_from_end(next_offset)
        # The segments of a tiered log below its first local one are in the tier.
        is_tiered = self.environment.has_tier and self.config.tiered
        log_start = start if is_tiered else max(start, segments.first.base_offset)
        # Kafka, too, truncates to the checkpointed start and not to the first segment's base offset.
        self.epochs.truncate_from_start(start)
        snapshots.remove_strays(segment.base_offset for segment in segments.all)
        rebuild_producer_state(
            snapshots,
            segments,
            log_start,
            next_offset,
            self._now_ms(),
            after_clean_shutdown=known.clean_shutdown,
        )
        recovery_point = max(min(recovery_point, next_offset), log_start)
        offsets = log_start, next_offset, recovery_point
        return LogParts(self.directory, segments, snapshots, self.epochs, *offsets, tuple(discarded), tuple(self._lost))

    def _plan(self) -> Recovery:
        """Return the plan for the present files."""
        entries = self.fs.list(self.directory)
        for info in entries:
            if not info.is_directory and parse_file(info.name) is None:
                raise BadNameError(
                    f"{self.directory}/{info.name} is named like a file of a log, but its name does not begin with an "
                    "offset. A broker does not start on it, either. Move it out of the directory, or restore its name"
                )
        return plan_recovery(self.fs, self.directory, entries)

    def _open_segments(self, segments: LogSegments, found: Sequence[SegmentFiles]) -> None:
        for segment in segments.all:
            segment.close_handlers()
        segments.replace(removed=[segment.base_offset for segment in segments.all])
        for files in found:
            segment = LogSegment(self.environment, self.directory, files.base_offset, self.config)
            segments.replace([segment])
            if not self._has_sane_indexes(segment):
                self._recover_segment(segments, segment)

    def _has_sane_indexes(self, segment: LogSegment) -> bool:
        """Return whether the offset index exists, and the transaction index fits the segment."""
        if not segment.has_offset_index():
            return False
        if not segment.has_time_index():
            segment.time_index.trim()  # creates an empty file
        try:
            transactions = segment.transactions.entries()
        except CorruptFileError as error:
            if error.kind is IndexProblem.VERSION:
                raise
            return False
        return all(one.last_offset >= segment.base_offset for one in transactions)

    def _recover(self, segments: LogSegments) -> tuple[list[LogSegment], int]:
        """Recover the segments from the recovery point on; return the segments to remove, and the log end offset."""
        discarded: list[LogSegment] = []
        if not self.checkpointed.clean_shutdown and len(segments):
            pending = segments.values(self.checkpointed.recovery_point, MAX_OFFSET)
            for at, segment in enumerate(pending):
                self.on_recovered(len(pending) - at)
                try:
                    cut = self._recover_segment(segments, segment)
                except DataError:
                    cut = segment.truncate_to(segment.base_offset)
                    self._note_cut(segment, segment.base_offset, cut)
                if cut > 0:
                    discarded = list(pending[at + 1 :])
                    if size := sum(one.size_bytes for one in discarded):
                        why, first = "as they follow the damage", discarded[0].base_offset
                        self._lost.append(LostRecords(why, first, None, len(discarded), size))
                    _discard(discarded)
                    segments.replace(removed=[one.base_offset for one in discarded])
                    break
            self.on_recovered(0)
        return discarded, segments.active.read_next_offset() if len(segments) else 0

    def _recover_segment(self, segments: LogSegments, segment: LogSegment) -> int:
        """Rebuild a segment's indexes from its batches and cut off an invalid tail; return the number of bytes cut."""
        snapshots = self._snapshots.fresh()
        rebuild_producer_state(
            snapshots, segments, self.checkpointed.log_start_offset, segment.base_offset, self._now_ms()
        )
        cut = self._rebuild_segment(segment, snapshots.state)
        snapshots.take()
        return cut

    def _rebuild_segment(self, segment: LogSegment, state: ProducerState) -> int:
        segment.reset_indexes()
        limits = IndexLimits(self.config.index_interval_bytes, self.config.segment_index_bytes)
        indexes = SegmentIndexes(segment.base_offset, limits)
        valid_bytes, next_offset = 0, segment.base_offset
        for rows in index_segment(segment.windows(), segment.base_offset, indexes, str(segment)):
            valid_bytes = int(rows["position"][-1] + rows["size_bytes"][-1])
            next_offset = int(rows["last_offset"][-1]) + 1
            known = self.epochs.latest_epoch
            for entry in begun_epochs(rows, NONE if known is None else known):
                self.epochs.assign(entry.epoch, entry.start_offset)
            self._replay_recovered(segment, rows, state)
        is_lost = valid_bytes < segment.size_bytes and not segment.has_only_zeros_from(valid_bytes)
        cut = segment.cut(valid_bytes)
        if is_lost:
            self._note_cut(segment, next_offset, cut)
        segment.finish_recovery(indexes.largest_timestamp, indexes.files())
        return cut

    def _note_cut(self, segment: LogSegment, offset: int, size_bytes: int) -> None:
        if size_bytes:
            why = f"as a batch in {segment.path(FileKind.LOG)} is not whole, or damaged"
            self._lost.append(LostRecords(why, offset, None, 0, size_bytes))

    @staticmethod
    def _replay_recovered(segment: LogSegment, rows: BatchRows, state: ProducerState) -> None:
        for aborted in state.take(_of_producers(segment, rows)):
            segment.transactions.append(aborted)
        new = rows["magic"] == 2
        if new.any():
            state.end_offset = int(rows["last_offset"][new][-1]) + 1

    def _split_overflowed(self, segment: LogSegment) -> bool:
        """Replace a segment with several if its offsets span too much; return whether they do.

        Source: Kafka UnifiedLog.splitOverflowedSegment. Differs: the first part keeps the segment's base offset, and
        the parts replace it in the steps of a swap, so that no power cut loses any of them.
        """
        limits = IndexLimits(self.config.index_interval_bytes, self.config.segment_index_bytes)
        folder = work_folder.new_folder(self.directory)
        work_folder.make(self.fs, folder)

        def begin(batches: BatchRows) -> SegmentWriter:
            return SegmentWriter(self.fs, folder, int(batches["base_offset"][0]), limits)

        try:
            writers = [SegmentWriter(self.fs, folder, segment.base_offset, limits)]
            for window in segment.windows():
                for _ in write_split(writers, begin, window, window.batches):
                    pass
            if len(writers) == 1:
                writers[0].close()
                return False
            assert sum(writer.size_bytes for writer in writers) == segment.size_bytes, "no batch is lost by a split"
            paths = [path for one in writers for path in one.finish(mtime_ns=segment.last_modified_ms * 1_000_000)]
            names = tuple(path.rpartition("/")[2] for path in paths)
            bases = frozenset({segment.base_offset}), frozenset(writer.base_offset for writer in writers)
            swap_in(self.fs, self.directory, Replacement(folder, names, *bases, writers[-1].next_offset))
            return True
        finally:
            work_folder.remove(self.fs, folder)

"""The files of a live log: rolls, reads, flushes, truncates and removes its segments.

This module handles offsets and bytes; `log` handles producers, leaders and the high watermark. Only one thread at a
time makes changes.
Source: Kafka LocalLog.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.common.errors import IllegalArgumentError, KafkaError, KafkaStorageError, OffsetOutOfRangeError
from cordwood.live.directories import Guard
from cordwood.live.environment import LogConfig, LogEnvironment
from cordwood.live.loading import LogParts
from cordwood.live.segment import BatchPlace, LogSegment
from cordwood.storage.changes import swap
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.formats.filenames import Temporary, offset_name, parse_directory
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.index import files as key_indexes
from cordwood.storage.log.recovery import SEGMENT_KINDS


class ReadEnd(NamedTuple):
    """The end of a read.

    Attributes:
        offset: only records below this offset are returned.
        position: position in that segment; all bytes before it are below the offset.
    """

    offset: int
    segment_base: int
    position: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """The result of a read.

    Attributes:
        offset: offset of the first batch; without any, the bound, or the base offset of the batch that holds the start.
        records: whole batches, except that the last may be cut off; the first may begin below the requested offset.
        first_entry_incomplete: not even the first batch is whole; False if the read was for no bytes.
        aborted: the aborted transactions that a reader of committed records must skip; None if they were not requested.
    """

    offset: int
    records: bytes = b""
    first_entry_incomplete: bool = False
    aborted: tuple[AbortedTransaction, ...] | None = None


class LocalLog:
    """The segments of a log on disk.

    Attributes:
        end: position of the next record. A failed append may leave bytes after it, which no read returns.
        recovery_point: all records below this offset are on disk.
        last_flush_ms: time of the last change of the recovery point, on the clock of the scheduler.
    """

    def __init__(self, environment: LogEnvironment, config: LogConfig, loaded: LogParts) -> None:
        self.fs = environment.fs
        self._environment = environment
        self.directory = loaded.directory
        self.log_directory, _, name = loaded.directory.rpartition("/")
        self.topic_partition = parse_directory(name).topic_partition
        self.name = str(self.topic_partition)
        self.config = config
        self.segments = loaded.segments
        self.recovery_point = loaded.recovery_point
        self.move_end(loaded.log_end_offset)
        self.clock = environment.clock
        self.scheduler = environment.scheduler
        self.last_flush_ms = self.scheduler.clock()
        self.failures = environment.failures
        self._is_closed = False
        #: The guard of all appends.
        self.appending = self.guarded("appending records to")
        #: Segments that are removed from the log, but whose files still exist.
        self._leaving: set[LogSegment] = set()
        #: Held while the directory is renamed, or synced under its current name.
        self._naming = threading.Lock()

    def guarded(self, doing: str) -> Guard:
        """Let an I/O error of a `with` block take the log directory offline; `doing` describes the work."""
        return self.failures.guarded(self.log_directory, doing, self.name)

    @property
    def is_closed(self) -> bool:
        """Whether the log takes no more changes."""
        return self._is_closed

    def check_open(self) -> None:
        """Raise KafkaStorageError if the log takes no more changes."""
        if self._is_closed:
            raise KafkaStorageError(
                f"The memory mapped buffer for log of {self.name} is already closed: the log was closed or deleted"
            )

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self.end.offset

    def move_end(self, offset: int) -> None:
        """Set the log end offset, at the end of the active segment; lower a recovery point that is above it."""
        active = self.segments.active
        self.end = ReadEnd(offset, active.base_offset, active.size_bytes)
        if self.recovery_point > offset:
            self.recovery_point = offset

    def new_segment(self, base_offset: int) -> LogSegment:
        """Create the files of a segment, and open it."""
        return LogSegment(self._environment, self.directory, base_offset, self.config, is_new=True)

    # ---- rolling -----------------------------------------------------------------------------------------------------

    def must_roll(self, size_bytes: int, timestamp: int, last_offset: int) -> bool:
        """Return whether an append needs a new segment.

        Args:
            timestamp: largest timestamp of its records.
        """
        segment, config = self.segments.active, self.config
        waited = segment.waited_ms(self.clock, timestamp)
        return (
            segment.size_bytes > config.segment_bytes - size_bytes
            or (segment.size_bytes > 0 and waited > config.max_segment_ms - segment.roll_jitter_ms)
            or segment.has_full_index
            or not segment.fits(last_offset)
        )

    def roll(self, expected_next_offset: int = 0) -> LogSegment:
        """Begin a new segment at the log end offset, or above it if the next record will be there."""
        self.check_open()
        base = max(expected_next_offset, self.log_end_offset)
        active = self.segments.active
        if self.segments.get(base) is not None:
            if active.base_offset == base and active.size_bytes == 0:
                _ = active.offset_index, active.time_index  # Kafka logs their sizes, which creates their files
                return self.replace_active(base)
            raise KafkaError(
                f"Trying to roll a new log segment for topic partition {self.name} with start offset {base} while it "
                f"already exists. Existing segment is {self.segments.get(base)}."
            )
        if base < active.base_offset:
            raise KafkaError(
                f"Trying to roll a new log segment for topic partition {self.name} with start offset {base} lower "
                f"than start offset of the active segment {active}"
            )
        for kind in SEGMENT_KINDS:
            path = f"{self.directory}/{offset_name(base, kind)}"
            if self.fs.exists(path):
                self.fs.unlink(path)
        active.become_inactive()
        segment = self.new_segment(base)
        self.segments.replace([segment])
        self.move_end(self.log_end_offset)
        return segment

    def replace_active(self, base_offset: int) -> LogSegment:
        """Replace the active segment with a new empty segment; remove the files of the old one later."""
        old = self.segments.active
        self._forget_indexes([old.base_offset])
        if old.base_offset == base_offset:
            old.change_suffix(Temporary.DELETED)
        segment = self.new_segment(base_offset)
        self.segments.replace([segment], [old.base_offset])
        self.move_end(self.log_end_offset)
        self.delete_files([old])
        return segment

    # ---- removing ----------------------------------------------------------------------------------------------------

    def _forget_indexes(self, segments: Collection[int]) -> None:
        """Remove the key indexes of segments: before a change of a segment, but after its removal from the log.

        So even after a crash no segment has the index of another one; appends change no index. Errors of the disk are
        ignored, as in `cleaning.engine.task.put_in_place`.
        """
        with contextlib.suppress(OSError):
            key_indexes.forget_indexes(self.fs, self.directory, segments)

    def remove(self, segments: Sequence[LogSegment]) -> None:
        """Remove segments from the log, and their files after `file.delete.delay.ms`."""
        gone = [segment.base_offset for segment in segments]
        self.segments.replace(removed=gone)
        self._forget_indexes(gone)
        self.delete_files(segments)

    def swap_in(self, replacement: Replacement) -> tuple[LogSegment, ...]:
        """Replace segments with the outputs of a clean; remove the files of the replaced segments later.

        Durable on return. Readers see either the old segments or the new ones; for the state after a crash see
        `storage.changes.swap`.

        Args:
            replacement: the replacement of one group. Segments that were removed meanwhile are ignored; if the log has
                none of the group's segments any more, nothing is replaced.

        Returns:
            the replaced segments, except segments with the base offset of an output.
        """
        self.check_open()
        old = [one for one in self.segments.all if one.base_offset in replacement.replaced]
        if not old:
            return ()
        files = [name for one in old for name in one.file_names()]
        swap.own_like_old(self.fs, self.directory, replacement, old[0].base_offset)
        steps = swap.Swap.of(self.fs, self.directory, replacement, files, unlinks_old=False)
        steps.commit()
        with ExitStack() as held:
            for segment in old:
                held.enter_context(segment.names)
            steps.finish()
            for segment in old:
                segment.take_suffix(Temporary.DELETED)
        new = [LogSegment(self._environment, self.directory, base, self.config) for base in sorted(replacement.outputs)]
        for segment in new:
            segment.was_cleaned = True
        self.segments.replace(new, [segment.base_offset for segment in old])
        self.delete_files(old)
        return tuple(segment for segment in old if segment.base_offset not in replacement.outputs)

    def delete_files(self, segments: Sequence[LogSegment]) -> None:
        """Remove the files of segments that are no longer in the log."""
        for segment in segments:
            if not segment.is_deleted:
                segment.change_suffix(Temporary.DELETED)
        self._leaving.update(segments)

        def delete() -> None:
            for segment in segments:
                with self.guarded("deleting segments"):
                    segment.delete_files()
                self._leaving.discard(segment)

        if segments:
            self.scheduler.schedule("delete-file", delete, delay_ms=self.config.file_delete_delay_ms)

    def truncate_to(self, offset: int) -> tuple[LogSegment, ...]:
        """Remove the records at or above an offset; return the removed segments."""
        gone = tuple(segment for segment in self.segments.all if segment.base_offset > offset)
        self.remove(gone)
        self._forget_indexes([self.segments.active.base_offset])
        self.segments.active.truncate_to(offset)
        self.move_end(offset)
        return gone

    def truncate_fully_and_start_at(self, offset: int) -> tuple[LogSegment, ...]:
        """Remove all records, and continue at an offset; return the removed segments."""
        self.check_open()
        gone = self.segments.all
        self.remove(gone[:-1])
        self.replace_active(offset)
        self.move_end(offset)
        return gone

    # ---- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, offset: int) -> None:
        """Make all records below an offset durable; keep the recovery point. Needs no lock."""
        start = self.recovery_point
        if start > offset:
            return
        segments = self.segments.values(start, offset)
        has_new_names = any(segment.base_offset >= start for segment in segments)
        try:
            for segment in segments:
                began = time.monotonic()
                has_new_names |= segment.flush()
                self._environment.stats.flushed(began)
            if has_new_names:
                with self._naming:
                    self.fs.sync_directory(self.directory)
        except OSError:
            if not self._is_closed:  # otherwise the log was deleted meanwhile
                raise

    def mark_flushed(self, offset: int) -> None:
        """Set the recovery point, because all records below this offset are durable."""
        self.check_open()
        if offset > self.recovery_point:
            self.recovery_point = offset
            self.last_flush_ms = self.scheduler.clock()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[LogSegment, BatchPlace] | None:
        """Return the first batch whose last offset is at or above an offset, with its segment; None without one."""
        segment = self.segments.floor(offset)
        while segment is not None:
            place = segment.find(offset)
            if place is not None:
                return segment, place
            segment = self.segments.higher(segment.base_offset)
        return None

    def base_of_batch(self, offset: int) -> int:
        """Return the base offset of the first batch that ends at or above an offset; the log end offset without one."""
        self._check_range(offset)
        found = self.find(offset) if offset < self.log_end_offset else None
        return self.log_end_offset if found is None else found[0].first_offset(found[1])

    def _check_range(self, offset: int) -> None:
        if offset > self.log_end_offset or self.segments.floor(offset) is None:
            raise OffsetOutOfRangeError(
                f"Received request for offset {offset} for partition {self.name}, but we only have log segments "
                f"upto {self.log_end_offset}."
            )

    def bound(self, offset: int) -> ReadEnd:
        """Return the end of the records below an offset."""
        end = self.end
        if offset >= end.offset:
            return end
        found = self.find(offset)
        return (
            end._replace(offset=offset) if found is None else ReadEnd(offset, found[0].base_offset, found[1].position)
        )

    def read(
        self, start_offset: int, max_bytes: int, bound: ReadEnd, *, min_one_message: bool, with_aborted: bool
    ) -> FetchData:
        """Read batches.

        Args:
            min_one_message: return the first batch even if it is larger.

        Raises:
            OffsetOutOfRangeError: the log does not have this offset.
            IllegalArgumentError: `max_bytes` is negative.
        """
        none = () if with_aborted else None
        self._check_range(start_offset)
        if start_offset >= bound.offset:
            at = bound.offset if start_offset == bound.offset else self.base_of_batch(start_offset)
            return FetchData(at, aborted=none)
        if max_bytes < 0:
            raise IllegalArgumentError(f"Invalid max size {max_bytes} for log read from {self.name}")
        found = self.find(start_offset)
        if found is None:
            return FetchData(self.log_end_offset)
        segment, place = found
        limit = max(max_bytes, place.size_bytes) if min_one_message else max_bytes
        end = segment.size_bytes if segment.base_offset < bound.segment_base else bound.position
        if segment.base_offset > bound.segment_base:
            end = place.position
        records = segment.read_bytes(place.position, max(0, min(end - place.position, limit)))
        aborted = self._aborted(start_offset, segment, place.position + len(records)) if with_aborted else None
        return FetchData(segment.first_offset(place), records, 0 < limit < place.size_bytes, aborted)

    def _aborted(self, start: int, segment: LogSegment, position: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that overlap a read which ends at a position of a segment."""
        end = segment.offset_index.offset_behind(position)
        if end is None:
            following = self.segments.higher(segment.base_offset)
            end = self.log_end_offset if following is None else following.base_offset
        found: list[AbortedTransaction] = []
        at: LogSegment | None = segment
        while at is not None and not at.transactions.collect(start, end, found):
            at = self.segments.higher(at.base_offset)
        return tuple(found)

    # ---- the directory -----------------------------------------------------------------------------------------------

    def rename_directory(self, directory: str) -> None:
        """Rename the partition's directory; open files stay open. Durable on return."""
        with ExitStack() as held:
            held.enter_context(self._naming)
            segments = [*self.segments.all, *self._leaving]
            for segment in segments:
                held.enter_context(segment.names)
            self.fs.rename(self.directory, directory)
            self.fs.sync_directory(directory.rpartition("/")[0])
            self.directory = directory
            for segment in segments:
                segment.move_to(directory)

    # ---- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all segments properly."""
        self.check_open()
        has_new_names = False
        for segment in self.segments.all:
            has_new_names |= segment.close() or segment.base_offset >= self.recovery_point
        if has_new_names:
            self.fs.sync_directory(self.directory)
        self._is_closed = True

    def refuse_changes(self) -> None:
        """Let every later change fail, as after `close_handlers`; reads still work."""
        self._is_closed = True

    def close_handlers(self) -> None:
        """Release all files; every later change fails."""
        self._is_closed = True
        for segment in self.segments.all:
            segment.close_handlers()

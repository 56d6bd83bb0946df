"""Which live log is cleaned next, what is done to it meanwhile, and how far each has been cleaned.

    none ── grab, deletable_logs ──► in progress ── done ──► none
                                         │
                                       abort
                                         ▼
    none ◄── resume ── paused(n) ◄─── aborted        the thread that works on the log notices, and reports the end

A log is in progress while it is cleaned or while its old segments are deleted; a paused log is left alone. One lock
guards the states and the checkpoint files; a thread releases it while it waits for an abort.

A clean holds a claim, and must not change the log without it. So an abort revokes the claim and need not wait for the
clean to notice: the log is paused at once. An abort waits only for a swap of a group that has begun.

Source: Kafka LogCleanerManager. `cleaning.selection` decides which logs are dirty.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.cleaning.plan import HeaderFacts, SegmentFacts
from cordwood.cleaning.selection import (
    clean_range,
    first_dirty_offset,
    non_active_from,
    overdue_ms,
    segments_between,
)
from cordwood.clock import Clock, monotonic_clock
from cordwood.config import LONG_MAX
from cordwood.errors import (
    CorruptFileError,
    IllegalStateError,
    KafkaStorageError,
    LogCleaningAbortedError,
)
from cordwood.fs.base import LocalFileSystem
from cordwood.service.failures import LogDirFailureChannel, io_error_of
from cordwood.service.log import Log
from cordwood.service.log_config import LogConfig
from cordwood.service.segment import LogSegment
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from cordwood.types import NONE, TopicPartition

_log = logging.getLogger(__name__)
#: How often a thread that waits for an abort looks again.
_POLL_SECONDS = 0.1
#: How long a log is left alone after its first failure, and at most; the pause doubles with each further failure.
_RETRY_MS, _RETRY_MS_MAX = 60_000, 3_600_000

IN_PROGRESS = "in progress"
ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Paused:
    """A log that is left alone until it was resumed as often as it was paused."""

    count: int

    def __str__(self) -> str:
        return f"paused({self.count})"


State = str | Paused


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """A log whose last clean has failed.

    Attributes:
        failures: how many cleans have failed, one after the other.
        retry_at_ms: when it is tried again, on the cleaner's monotonic clock; None: never.
    """

    reason: str
    failures: int
    retry_at_ms: int | None


@dataclass(frozen=True, slots=True)
class LogToClean:
    """What a clean of a log would go over.

    Attributes:
        uncleanable_offset: what bounds the range: the last stable offset, the active segment, or a lag.
        first_uncleanable_offset: where the range ends, at the base offset of a segment.
        force_update_checkpoint: the log's checkpoint is outside the log, and must be corrected.
        clean_bytes: of the segments that begin below the first dirty offset.
        cleanable_bytes: of the segments in the range; the first of them may count in both.
        overdue_ms: by how much the oldest dirty batch exceeds `max.compaction.lag.ms`.
    """

    partition: TopicPartition
    log: Log
    first_dirty_offset: int
    uncleanable_offset: int
    first_uncleanable_offset: int
    force_update_checkpoint: bool
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int

    @property
    def total_bytes(self) -> int:
        """Clean and cleanable bytes together."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The dirty share; 0 of an empty log."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is dirty enough, or has waited for too long."""
        must = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return must or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


@dataclass(frozen=True, slots=True)
class SelectionStats:
    """What one selection has seen, as Kafka's cleaner reports it."""

    cleanable_partitions: int = 0
    delayed_partitions: int = 0
    max_compaction_delay_ms: int = 0


class Claim:
    """The right of one clean to change its log; an abort takes it away.

    Attributes:
        selection: what the selection that chose the log has seen.
        is_lost: the clean was aborted. Nothing that it writes counts any more.
    """

    def __init__(
        self,
        found: LogToClean,
        selection: SelectionStats,
        changed: threading.Condition,
        on_change_end: Callable[[Claim], None],
    ) -> None:
        self.found = found
        self.selection = selection
        self.is_lost = False
        self.is_changing = False
        self._changed = changed
        self._on_change_end = on_change_end

    def check(self) -> None:
        """Raise LogCleaningAbortedError once the clean must stop. Called often; takes no lock."""
        if self.is_lost:
            raise LogCleaningAbortedError(f"the clean of {self.found.partition} is aborted")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """In the block the claim cannot be lost, so the log may be changed; an abort waits for its end.

        Raises:
            LogCleaningAbortedError: the claim is lost already.
        """
        with self._changed:
            self.check()
            self.is_changing = True
        try:
            yield
        finally:
            with self._changed:
                self.is_changing = False
                self._on_change_end(self)


class _Seen(NamedTuple):
    """What of a log decides what a clean would go over, if no lag has a say in it: then time has none, either."""

    log: Log
    segments: tuple[LogSegment, ...]
    config: LogConfig
    offsets: tuple[int, int, int | None]

    def equals(self, other: _Seen) -> bool:
        """Whether nothing has changed; segments are the same only if nothing was rolled, removed or swapped in."""
        return (
            self.log is other.log
            and self.segments is other.segments
            and self.config is other.config
            and self.offsets == other.offsets
        )


def log_to_clean(partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
    """What a clean of a log would go over now."""
    config = log.config
    first_dirty, why = first_dirty_offset(checkpoint, log.log_start_offset, log.log_end_offset)
    live = log.log_segments
    dirty = {one.base_offset for one in non_active_from([_facts(one, NONE) for one in live], first_dirty)}
    # The largest timestamp may have to be read; only a lag needs it, and only of dirty segments.
    asks = config.min_compaction_lag_ms > 0
    segments = [_facts(one, one.largest_timestamp if asks and one.base_offset in dirty else NONE) for one in live]
    found = clean_range(
        segments,
        first_dirty,
        log.last_stable_offset,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        now_ms=now_ms,
    )
    end = found.first_uncleanable_offset
    headers = [HeaderFacts(first_timestamp=one.first_timestamp if one.base_offset in dirty else NONE) for one in live]
    return LogToClean(
        partition,
        log,
        first_dirty,
        max(first_dirty, found.bound_offset),
        end,
        checkpoint is not None and bool(why),
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in segments_between(segments, min(first_dirty, end), end)),
        overdue_ms(segments, headers, first_dirty, max_compaction_lag_ms=config.max_compaction_lag_ms, now_ms=now_ms),
    )


def _facts(segment: LogSegment, largest_timestamp: int) -> SegmentFacts:
    return SegmentFacts(segment.base_offset, segment.size_bytes, 0, 0, 0, largest_timestamp)


class LogCleanerManager:
    """The states and checkpoints of the logs that are cleaned."""

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Make the missing checkpoint files, empty.

        Args:
            logs: gives the current logs; future ones are never cleaned.
            failures: takes a directory offline whose checkpoint file cannot be read or written.
            clock: a monotonic one; says when a log that could not be cleaned is tried again.
        """
        self._fs = fs
        self._logs = logs
        self._failures = failures
        self._files = {
            fs.absolute_path(path): f"{fs.absolute_path(path)}/{filenames.CLEANER_OFFSETS}" for path in log_dirs
        }
        self._states: dict[TopicPartition, State] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._clock = clock
        self._uncleanable: dict[str, dict[TopicPartition, Uncleanable]] = {}
        self._changed = threading.Condition(threading.RLock())
        #: What was found of a log whose state is the same as then; 10,000 logs are looked at in each round.
        self._found: dict[TopicPartition, tuple[_Seen, LogToClean]] = {}
        #: The bytes of checkpoint files, and what they say.
        self._decoded: dict[str, tuple[bytes, dict[TopicPartition, int]]] = {}
        #: Of the last selection: the largest dirty share.
        self.dirtiest_ratio = 0.0
        #: When it was, on the monotonic clock.
        self.last_run_ms = clock()
        for path in self._files.values():
            if not fs.exists(path):
                fs.create(path).close()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return tuple(self._files)

    # ---- choosing ----------------------------------------------------------------------------------------------------

    def grab_filthiest_compacted_log(self, now_ms: int) -> LogToClean | None:
        """Choose the log with the largest dirty share among those that are due; it is in progress then.

        A checkpoint that is outside its log is corrected on the way.
        """
        with self._changed:
            due, _ = self._select(now_ms)
            if not due:
                return None
            self._states[due[0].partition] = IN_PROGRESS
            return due[0]

    def claim_filthiest_compacted_log(self, now_ms: int) -> Claim | None:
        """Choose a log as `grab_filthiest_compacted_log`, for a clean that ends with `release`."""
        with self._changed:
            due, stats = self._select(now_ms)
            if not due:
                return None
            partition = due[0].partition
            self._states[partition] = IN_PROGRESS
            claim = self._claims[partition] = Claim(due[0], stats, self._changed, self._after_change)
            return claim

    def _select(self, now_ms: int) -> tuple[list[LogToClean], SelectionStats]:
        """The logs that are due and have no state, the filthiest first."""
        self.last_run_ms = self._clock()
        known, logs = self.all_cleaner_checkpoints(), self._logs()
        found: list[LogToClean] = []
        corrected: dict[str, dict[TopicPartition, int]] = {}
        for partition, log in logs.items():
            if not log.config.compact or partition in self._states or self._is_uncleanable(partition, log):
                continue
            one = self._look_at(partition, log, known.get(partition), now_ms)
            if one is None:
                continue
            if one.force_update_checkpoint:
                corrected.setdefault(log.parent_directory, {})[partition] = one.first_dirty_offset
            if one.total_bytes > 0:
                found.append(one)
        for path, offsets in corrected.items():
            self._update(path, offsets)
        for partition in self._found.keys() - logs.keys():
            del self._found[partition]
        self.dirtiest_ratio = max((one.cleanable_ratio for one in found), default=0.0)
        due = sorted((one for one in found if one.is_due), key=lambda one: -one.cleanable_ratio)
        overdue = [one.overdue_ms for one in found if one.overdue_ms > 0]
        return due, SelectionStats(len(due), len(overdue), max(overdue, default=0))

    def _look_at(self, partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean | None:
        """What a clean of a log would go over; None: that cannot be said.

        If it is the fault of the log, it is uncleanable. Kafka does nothing else in a round in which this fails.
        """
        segments = log.log_segments
        try:
            return self._found_before(partition, log, checkpoint, now_ms)
        except KafkaStorageError:
            return None  # its directory has failed
        except Exception as error:
            if log.log_segments is segments:  # otherwise somebody has just changed the log
                _log.exception("what is dirty in %s cannot be said", partition)
                self.note_failure(log.parent_directory, partition, f"what is dirty in it cannot be said: {error}")
            return None

    def _found_before(self, partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
        """See `log_to_clean`; computed only if something has changed."""
        config = log.config
        if checkpoint is not None and checkpoint > log.log_end_offset:
            checkpoint = LONG_MAX  # above the end now and until the log grows
        stable = min(log.last_stable_offset, log.active_segment.base_offset)
        seen = _Seen(log, log.log_segments, config, (log.log_start_offset, stable, checkpoint))
        before = self._found.get(partition)
        if before is not None and before[0].equals(seen):
            return before[1]
        found = log_to_clean(partition, log, checkpoint, now_ms)
        if config.min_compaction_lag_ms <= 0 and config.max_compaction_lag_ms == LONG_MAX:
            self._found[partition] = seen, found
        return found

    def deletable_logs(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Log]:
        """Return the compacted logs without a state, now in progress, so that old segments may be deleted."""
        with self._changed:
            logs = self._logs()
            asked = logs if partitions is None else {one: logs[one] for one in partitions if one in logs}
            found = {
                partition: log
                for partition, log in asked.items()
                if log.config.compact and partition not in self._states and not self._is_uncleanable(partition, log)
            }
            self._states |= dict.fromkeys(found, IN_PROGRESS)
            return found

    def pause_cleaning_for_non_compacted_partitions(self) -> dict[TopicPartition, Log]:
        """Pause and return the logs without a state that are not compacted.

        So retention cannot meet a clean of a log whose policy has just become `compact`.
        """
        with self._changed:
            found = {
                partition: log
                for partition, log in self._logs().items()
                if not log.config.compact and partition not in self._states
            }
            self._states |= dict.fromkeys(found, Paused(1))
            return found

    # ---- states ------------------------------------------------------------------------------------------------------

    def cleaning_state(self, partition: TopicPartition) -> State | None:
        """A log's state; None: no cleaner works on it."""
        with self._changed:
            return self._states.get(partition)

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean; see `abort_and_pause_cleaning`."""
        with self._changed:
            self.abort_and_pause_cleaning(partition)
            self.resume_cleaning([partition])

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, and let none begin until `resume_cleaning`.

        Once this returns, the clean can no longer change the log. Its thread, and tasks in other processes, may run for
        a moment longer. This waits only for a swap that has begun, or for a deletion of old segments.

        Raises:
            IllegalStateError: another thread waits for the same abort.
        """
        with self._changed:
            state = self._states.get(partition)
            if state is None:
                self._states[partition] = Paused(1)
            elif isinstance(state, Paused):
                self._states[partition] = Paused(state.count + 1)
            elif state == IN_PROGRESS:
                self._states[partition] = ABORTED
                claim = self._claims.get(partition)
                if claim is not None and not claim.is_changing:
                    self._take_away(claim)
            else:
                raise IllegalStateError(
                    f"Compaction for partition {partition} cannot be aborted and paused since it is in {state} state."
                )
            while not isinstance(self._states.get(partition), Paused):
                self._changed.wait(_POLL_SECONDS)

    def _take_away(self, claim: Claim) -> None:
        """End an aborted clean, wherever it is."""
        claim.is_lost = True
        del self._claims[claim.found.partition]
        self._end(claim.found.partition)

    def _after_change(self, claim: Claim) -> None:
        if self._states.get(claim.found.partition) == ABORTED:
            self._take_away(claim)

    def resume_cleaning(self, partitions: Iterable[TopicPartition]) -> None:
        """Take one pause of each back.

        Raises:
            IllegalStateError: one is not paused; those before it are resumed.
        """
        with self._changed:
            for partition in partitions:
                state = self._states.get(partition)
                if state is None:
                    raise IllegalStateError(
                        f"Compaction for partition {partition} cannot be resumed since it is not paused."
                    )
                if not isinstance(state, Paused):
                    raise IllegalStateError(
                        f"Compaction for partition {partition} cannot be resumed since it is in {state} state."
                    )
                if state.count > 1:
                    self._states[partition] = Paused(state.count - 1)
                else:
                    del self._states[partition]

    def check_cleaning_aborted(self, partition: TopicPartition) -> None:
        """Raise LogCleaningAbortedError once the clean must stop."""
        with self._changed:
            if self._states.get(partition) == ABORTED:
                raise LogCleaningAbortedError(f"the clean of {partition} is aborted")

    def done_cleaning(self, partition: TopicPartition, log_dir: str, end_offset: int) -> None:
        """A clean has ended: note how far it came, unless it was aborted.

        Raises:
            IllegalStateError: the log was not in progress.
        """
        with self._changed:
            try:
                if self._states.get(partition) == IN_PROGRESS:
                    self.update_checkpoints(log_dir, add=(partition, end_offset))
            finally:
                # After any failure: with Kafka's cleaner the log would stay in progress for good.
                self._claims.pop(partition, None)
                self._end(partition)

    def release(self, claim: Claim, end_offset: int) -> None:
        """A clean has ended, however that was: see `done_cleaning`. Of one that was aborted, nothing is noted."""
        with self._changed:
            if self._claims.get(claim.found.partition) is claim:
                self.done_cleaning(claim.found.partition, claim.found.log.parent_directory, end_offset)

    def done_deleting(self, partitions: Iterable[TopicPartition]) -> None:
        """The old segments of logs are deleted.

        Raises:
            IllegalStateError: one was not in progress.
        """
        with self._changed:
            for partition in partitions:
                self._end(partition)

    def _end(self, partition: TopicPartition) -> None:
        state = self._states.get(partition)
        if state is None:
            raise IllegalStateError(f"State for partition {partition} should exist.")
        if isinstance(state, Paused):
            raise IllegalStateError(f"In-progress partition {partition} cannot be in {state} state.")
        if state == ABORTED:
            self._states[partition] = Paused(1)
            self._changed.notify_all()
        else:
            del self._states[partition]

    # ---- logs that cannot be cleaned ---------------------------------------------------------------------------------

    def mark_partition_uncleanable(self, log_dir: str, partition: TopicPartition) -> None:
        """Leave a log alone for good."""
        with self._changed:
            self._mark(log_dir, partition, Uncleanable("it was marked so", 1, None))

    def note_failure(self, log_dir: str, partition: TopicPartition, reason: str) -> Uncleanable:
        """The clean of a log has failed: leave it alone for a while, for longer after each further failure."""
        with self._changed:
            known = self._uncleanable.get(self._fs.absolute_path(log_dir), {}).get(partition)
            failures = 1 if known is None else known.failures + 1
            wait_ms = min(_RETRY_MS << min(failures - 1, 10), _RETRY_MS_MAX)
            marked = Uncleanable(reason, failures, self._clock() + wait_ms)
            self._mark(log_dir, partition, marked)
            return marked

    def _mark(self, log_dir: str, partition: TopicPartition, marked: Uncleanable) -> None:
        self._uncleanable.setdefault(self._fs.absolute_path(log_dir), {})[partition] = marked

    def mark_partition_cleanable(self, log_dir: str, partition: TopicPartition) -> None:
        """Clear the mark, after a clean that succeeded, or to try again."""
        with self._changed:
            self._uncleanable.get(self._fs.absolute_path(log_dir), {}).pop(partition, None)

    def uncleanable(self, partition: TopicPartition) -> Uncleanable | None:
        """Why a log is not cleaned; None: it is."""
        with self._changed:
            known = [self._uncleanable[path] for path in self._uncleanable.keys() & self._files.keys()]
            return next((marked[partition] for marked in known if partition in marked), None)

    def seconds_to_retry(self, marked: Uncleanable) -> int | None:
        """How long a log is still left alone; None: for good."""
        return None if marked.retry_at_ms is None else max(0, marked.retry_at_ms - self._clock()) // 1_000

    def uncleanable_partitions(self, log_dir: str) -> frozenset[TopicPartition]:
        """The logs of a directory whose last clean has failed."""
        with self._changed:
            return frozenset(self._uncleanable.get(self._fs.absolute_path(log_dir), ()))

    def uncleanable_bytes(self, log_dir: str, now_ms: int) -> int:
        """What could be cleaned in the logs of a directory whose last clean has failed."""
        with self._changed:
            logs, known = self._logs(), self.all_cleaner_checkpoints()
            size_bytes = 0
            for one in self.uncleanable_partitions(log_dir) & logs.keys():
                with contextlib.suppress(Exception):  # a log may be uncleanable because this fails
                    size_bytes += self._found_before(one, logs[one], known.get(one), now_ms).cleanable_bytes
            return size_bytes

    def maintain_uncleanable_partitions(self) -> None:
        """Forget those that are not here any more."""
        with self._changed:
            known = self._logs()
            for marked in self._uncleanable.values():
                for partition in marked.keys() - known.keys():
                    del marked[partition]

    def _is_uncleanable(self, partition: TopicPartition, log: Log) -> bool:
        marked = self._uncleanable.get(log.parent_directory, {}).get(partition)
        return marked is not None and (marked.retry_at_ms is None or self._clock() < marked.retry_at_ms)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def all_cleaner_checkpoints(self) -> dict[TopicPartition, int]:
        """The first dirty offset of each log that was ever cleaned.

        A partition that is in the files of two directories counts with the entry of the one that its log is in, or with
        the smaller one.
        """
        with self._changed:
            read: dict[str, dict[TopicPartition, int]] = {}
            for path in self._files:
                try:
                    read[path] = self._read(path)
                except KafkaStorageError:
                    _log.exception("Failed to access checkpoint file in dir %s", path)
            found: dict[TopicPartition, int] = {}
            twice: set[TopicPartition] = set()
            for offsets in read.values():
                both = found.keys() & offsets.keys()
                found |= offsets | {one: min(offsets[one], found[one]) for one in both}
                twice |= both
            for one in twice:
                log = self._logs().get(one)
                own = {} if log is None else read.get(log.parent_directory, {})
                found[one] = own.get(one, found[one])
            return found

    def update_checkpoints(
        self,
        log_dir: str,
        *,
        add: tuple[TopicPartition, int] | None = None,
        remove: TopicPartition | None = None,
    ) -> None:
        """Change a directory's file; what it says of partitions that are not here goes. A storage error is logged."""
        self._update(log_dir, {} if add is None else dict([add]), remove)

    def _update(self, log_dir: str, added: Mapping[TopicPartition, int], removed: TopicPartition | None = None) -> None:
        with self._changed:
            path = self._fs.absolute_path(log_dir)
            if path not in self._files:
                return
            known = self._logs()
            try:
                kept = {one: offset for one, offset in self._read(path).items() if one in known and one != removed}
                self._write(path, {**kept, **added})
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", path)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """A log was truncated: what lies behind an offset is not clean any more.

        Raises:
            KafkaStorageError: the disk.
        """
        with self._changed:
            path = self._fs.absolute_path(log_dir)
            log = self._logs().get(partition)
            if path not in self._files or log is None or not log.config.compact:
                return
            known = self._read(path)
            if known.get(partition, 0) > offset:
                self._write(path, known | {partition: offset})

    def alter_checkpoint_dir(self, partition: TopicPartition, source: str, target: str) -> None:
        """A log has moved to another directory: its checkpoint, and a mark, move with it. A storage error is logged."""
        with self._changed:
            old, new = self._fs.absolute_path(source), self._fs.absolute_path(target)
            marked = self._uncleanable.get(old, {}).get(partition)
            try:
                offset = self._read(old).get(partition) if old in self._files else None
                if offset is not None:
                    self.update_checkpoints(old, remove=partition)
                    self.update_checkpoints(new, add=(partition, offset))
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", old)
            if marked is not None:
                self.mark_partition_cleanable(old, partition)
                self._mark(new, partition, marked)

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Forget the file of a directory that has failed."""
        with self._changed:
            self._files.pop(self._fs.absolute_path(log_dir), None)

    def _read(self, path: str) -> dict[TopicPartition, int]:
        file = self._files[path]
        with self._failures.guarded(path, f"reading {filenames.CLEANER_OFFSETS}", "the log directory"):
            data = read_file(self._fs, file)
            if path in self._decoded and self._decoded[path][0] == data:
                return self._decoded[path][1]
            try:
                self._decoded[path] = data, checkpoints.decode(data, file)
                return self._decoded[path][1]
            except CorruptFileError as error:
                known = io_error_of(error)
                if isinstance(known, OSError):
                    raise known from error
                # A number that is none ends Kafka's cleaner thread. Without offsets a clean has more to read, no more.
                _log.error("%s does not count, its logs are cleaned from their starts: %s", file, error)
                return {}

    def _write(self, path: str, offsets: Mapping[TopicPartition, int]) -> None:
        file = self._files[path]
        with self._failures.guarded(path, f"writing {filenames.CLEANER_OFFSETS}", "the log directory"):
            self._fs.put(file, checkpoints.encode(offsets), beside=f"{file}.tmp")

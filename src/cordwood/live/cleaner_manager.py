"""Chooses the live log to clean next, and keeps each log's cleaning state.

    none ── grab, deletable_logs ──► in progress ── done ──► none
                                         │
                                       abort
                                         ▼
    none ◄── resume ── paused(n) ◄─── aborted        the thread that works on the log notices, and reports the end

A log is in progress while it is cleaned or while its old segments are deleted; no cleaner touches a paused log. One
lock guards the states and the checkpoint files; a thread releases it while it waits for an abort.

A clean holds a claim, and must not change the log without it. So an abort revokes the claim and need not wait for the
clean to notice: the log is paused at once. An abort waits only for a group's swap that has already begun.

Source: Kafka LogCleanerManager. `log_to_clean` has the dirty ranges and the checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cordwood.cleaning.engine.task import FailureKind, failure_of
from cordwood.common.errors import IllegalStateError, KafkaStorageError, LogCleaningAbortedError
from cordwood.common.types import Clock, TopicPartition, monotonic_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.log import Log
from cordwood.live.log_to_clean import CleanerCheckpoints, LogsToClean, LogToClean

_log = logging.getLogger(__name__)
#: How often a thread that waits for an abort checks the state.
_POLL_SECONDS = 0.1
#: Pause after a log's first failed clean, and the longest pause; each further failure doubles the pause.
_RETRY_MS, _RETRY_MS_MAX = 60_000, 3_600_000

#: `Uncleanable.kind` of a log that was marked with `mark_partition_uncleanable`.
MARKED = "marked"
IN_PROGRESS = "in progress"
ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Paused:
    """A log that no cleaner touches until it was resumed as often as it was paused."""

    count: int

    def __str__(self) -> str:
        return f"paused({self.count})"


State = str | Paused


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """A log whose last clean has failed.

    Attributes:
        kind: a `FailureKind`, or `MARKED`.
        failures: number of failed cleans in a row.
        retry_at_ms: time of the next try, on the cleaner's monotonic clock; None: never.
    """

    reason: str
    failures: int
    retry_at_ms: int | None
    kind: str = FailureKind.OTHER


@dataclass(frozen=True, slots=True)
class SelectionStats:
    """Counts from one selection, as Kafka's cleaner reports them."""

    cleanable_partitions: int = 0
    delayed_partitions: int = 0
    max_compaction_delay_ms: int = 0


class Claim:
    """The right of one clean to change its log; an abort revokes it.

    Attributes:
        selection: counts from the selection that chose the log.
        is_lost: the clean was aborted, and its output must not be used.
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
        """Raise LogCleaningAbortedError once the clean must stop. Called often, so it takes no lock."""
        if self.is_lost:
            raise LogCleaningAbortedError(f"the clean of {self.found.partition} is aborted")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keep the claim during the block, so that the log may be changed; an abort waits for the end of the block.

        Raises:
            LogCleaningAbortedError: the claim is already lost.
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


class LogCleanerManager:
    """The states and checkpoints of logs, for the cleaner."""

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Create missing checkpoint files, empty.

        Args:
            logs: returns the current logs; future logs are never cleaned.
            failures: takes a directory offline if its checkpoint file cannot be read or written.
            clock: monotonic clock for the retry of logs that could not be cleaned.
        """
        self._fs = fs
        self._logs = logs
        self._states: dict[TopicPartition, State] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._clock = clock
        self._uncleanable: dict[str, dict[TopicPartition, Uncleanable]] = {}
        #: When each log was last cleaned, on the monotonic clock.
        self._cleaned_ms: dict[TopicPartition, int] = {}
        self._began_ms = clock()
        self._changed = threading.Condition(threading.RLock())
        self._found = LogsToClean()
        self._checkpoints = CleanerCheckpoints(fs, log_dirs, logs, failures, self._changed)
        # The manager offers these methods of the checkpoint files as its own.
        self.all_cleaner_checkpoints = self._checkpoints.all_cleaner_checkpoints
        self.update_checkpoints = self._checkpoints.update_checkpoints
        self.maybe_truncate_checkpoint = self._checkpoints.maybe_truncate_checkpoint
        self.handle_log_dir_failure = self._checkpoints.forget
        #: Largest dirty share in the last selection.
        self.dirtiest_ratio = 0.0
        #: Time of the last selection, on the monotonic clock.
        self.last_run_ms = clock()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return self._checkpoints.log_dirs

    def cleaned_to(self, partition: TopicPartition) -> int:
        """Return the first dirty offset of a log; -1 if it was never cleaned."""
        return self.all_cleaner_checkpoints().get(partition, -1)

    # ---- choosing ----------------------------------------------------------------------------------------------------

    def grab_filthiest_compacted_log(self, now_ms: int) -> LogToClean | None:
        """Choose the due log with the largest dirty share and set its state to "in progress".

        Also correct checkpoints that are outside their log.
        """
        with self._changed:
            due, _ = self._select(now_ms)
            if not due:
                return None
            self._states[due[0].partition] = IN_PROGRESS
            return due[0]

    def claim_filthiest_compacted_log(self, now_ms: int) -> Claim | None:
        """Choose a log as `grab_filthiest_compacted_log` does, for a clean that ends with `release`."""
        with self._changed:
            due, stats = self._select(now_ms)
            if not due:
                return None
            partition = due[0].partition
            self._states[partition] = IN_PROGRESS
            claim = self._claims[partition] = Claim(due[0], stats, self._changed, self._after_change)
            return claim

    def _select(self, now_ms: int) -> tuple[list[LogToClean], SelectionStats]:
        """Return the due logs without a state, the log with the largest dirty share first."""
        self.last_run_ms = self._clock()
        known, logs = self.all_cleaner_checkpoints(), self._logs()
        found: list[LogToClean] = []
        corrected: dict[str, dict[TopicPartition, int]] = {}
        for partition, log in logs.items():
            if not log.config.compact or partition in self._states or self._is_uncleanable(partition, log):
                continue
            if log.is_partial or log.is_closed:
                continue  # another writer may have claimed its tier
            one = self._look_at(partition, log, known.get(partition), now_ms)
            if one is None:
                continue
            if one.force_update_checkpoint:
                corrected.setdefault(log.parent_directory, {})[partition] = one.first_dirty_offset
            if one.total_bytes > 0:
                found.append(one)
        for path, offsets in corrected.items():
            self._checkpoints.replace(path, offsets)
        self._found.forget_all_but(logs)
        self.dirtiest_ratio = max((one.cleanable_ratio for one in found), default=0.0)
        due = sorted((one for one in found if one.is_due), key=lambda one: -one.cleanable_ratio)
        overdue = [one.overdue_ms for one in found if one.overdue_ms > 0]
        return due, SelectionStats(len(due), len(overdue), max(overdue, default=0))

    def _look_at(self, partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean | None:
        """Return the range that a clean of this log would cover, or None if it cannot be determined.

        If the log itself is the cause, mark it as uncleanable. Kafka instead ends the whole round here.
        """
        segments = log.log_segments
        try:
            return self._found.of(partition, log, checkpoint, now_ms)
        except KafkaStorageError:
            return None  # its directory has failed
        except Exception as error:
            if log.log_segments is segments:  # otherwise another thread has just changed the log
                _log.exception("cannot find the dirty part of %s", partition)
                reason, kind = f"cannot find its dirty part: {error}", failure_of(error, log.directory).kind
                self.note_failure(log.parent_directory, partition, reason, kind)
            return None

    def deletable_logs(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Log]:
        """Set the compacted logs without a state to "in progress" and return them, to delete their old segments."""
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

        While they are paused, retention cannot overlap with a clean of a log whose policy has just become `compact`.
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
        """Return a log's state; None if no cleaner works on it."""
        with self._changed:
            return self._states.get(partition)

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean and let later cleans run; see `abort_and_pause_cleaning`."""
        with self._changed:
            self.abort_and_pause_cleaning(partition)
            self.resume_cleaning([partition])

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, and prevent further cleans until `resume_cleaning`.

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
        """Revoke the claim of an aborted clean, at any of its steps."""
        claim.is_lost = True
        del self._claims[claim.found.partition]
        self._end(claim.found.partition)

    def _after_change(self, claim: Claim) -> None:
        if self._states.get(claim.found.partition) == ABORTED:
            self._take_away(claim)

    def resume_cleaning(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo one pause of each partition.

        Raises:
            IllegalStateError: a partition is not paused; the partitions before it are resumed.
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
        """End a clean: store its end offset, unless it was aborted.

        Raises:
            IllegalStateError: the log was not in progress.
        """
        with self._changed:
            try:
                if self._states.get(partition) == IN_PROGRESS:
                    self.update_checkpoints(log_dir, add=(partition, end_offset))
            finally:
                # Also after an error. In Kafka, the log would then stay in progress forever.
                self._claims.pop(partition, None)
                self._end(partition)

    def release(self, claim: Claim, end_offset: int) -> None:
        """End a clean after success or failure; see `done_cleaning`. Store nothing if it was aborted."""
        with self._changed:
            if self._claims.get(claim.found.partition) is claim:
                self.done_cleaning(claim.found.partition, claim.found.log.parent_directory, end_offset)

    def done_deleting(self, partitions: Iterable[TopicPartition]) -> None:
        """End the deletion of old segments.

        Raises:
            IllegalStateError: a log was not in progress.
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
        """Never clean this log again."""
        with self._changed:
            self._mark(log_dir, partition, Uncleanable("it was marked so", 1, None, MARKED))

    def note_failure(
        self, log_dir: str, partition: TopicPartition, reason: str, kind: str = FailureKind.OTHER
    ) -> Uncleanable:
        """Note a failed clean: pause the log's cleans, for longer after each further failure."""
        with self._changed:
            known = self._uncleanable.get(self._fs.absolute_path(log_dir), {}).get(partition)
            failures = 1 if known is None else known.failures + 1
            wait_ms = min(_RETRY_MS << min(failures - 1, 10), _RETRY_MS_MAX)
            marked = Uncleanable(reason, failures, self._clock() + wait_ms, kind)
            self._mark(log_dir, partition, marked)
            return marked

    def _mark(self, log_dir: str, partition: TopicPartition, marked: Uncleanable) -> None:
        self._uncleanable.setdefault(self._fs.absolute_path(log_dir), {})[partition] = marked

    def note_clean(self, log_dir: str, partition: TopicPartition) -> None:
        """Store the time of a successful clean, and remove the log's mark."""
        with self._changed:
            self._cleaned_ms[partition] = self._clock()
            self.mark_partition_cleanable(log_dir, partition)

    def seconds_since_clean(self, partition: TopicPartition) -> int:
        """Return the seconds since a log was last cleaned, or since this manager was created if it was not cleaned."""
        return (self._clock() - self._cleaned_ms.get(partition, self._began_ms)) // 1_000

    def mark_partition_cleanable(self, log_dir: str, partition: TopicPartition) -> None:
        """Remove the mark, after a successful clean or to try again."""
        with self._changed:
            self._uncleanable.get(self._fs.absolute_path(log_dir), {}).pop(partition, None)

    def uncleanable(self, partition: TopicPartition) -> Uncleanable | None:
        """Return the mark of a log whose last clean failed, or that a program marked; None without a mark."""
        with self._changed:
            known = [self._uncleanable[path] for path in self._uncleanable.keys() & set(self.log_dirs)]
            return next((marked[partition] for marked in known if partition in marked), None)

    def seconds_to_retry(self, marked: Uncleanable) -> int | None:
        """Return the seconds until the next try; None if there will be no other try."""
        return None if marked.retry_at_ms is None else max(0, marked.retry_at_ms - self._clock()) // 1_000

    def uncleanable_partitions(self, log_dir: str) -> frozenset[TopicPartition]:
        """Return the logs of a directory whose last clean has failed."""
        with self._changed:
            return frozenset(self._uncleanable.get(self._fs.absolute_path(log_dir), ()))

    def uncleanable_bytes(self, log_dir: str, now_ms: int) -> int:
        """Return the cleanable bytes in the logs of a directory whose last clean has failed."""
        with self._changed:
            logs, known = self._logs(), self.all_cleaner_checkpoints()
            size_bytes = 0
            for one in self.uncleanable_partitions(log_dir) & logs.keys():
                with contextlib.suppress(Exception):  # this very call may be why a log is uncleanable
                    size_bytes += self._found.of(one, logs[one], known.get(one), now_ms).cleanable_bytes
            return size_bytes

    def maintain_uncleanable_partitions(self) -> None:
        """Forget partitions whose logs were removed."""
        with self._changed:
            known = self._logs()
            for marked in self._uncleanable.values():
                for partition in marked.keys() - known.keys():
                    del marked[partition]
            for partition in self._cleaned_ms.keys() - known.keys():
                del self._cleaned_ms[partition]

    def _is_uncleanable(self, partition: TopicPartition, log: Log) -> bool:
        marked = self._uncleanable.get(log.parent_directory, {}).get(partition)
        return marked is not None and (marked.retry_at_ms is None or self._clock() < marked.retry_at_ms)

    # ---- directories -------------------------------------------------------------------------------------------------

    def alter_checkpoint_dir(self, partition: TopicPartition, source: str, target: str) -> None:
        """Move the checkpoint and the mark of a log that moved to another directory. A storage error is only logged."""
        with self._changed:
            old, new = self._fs.absolute_path(source), self._fs.absolute_path(target)
            self._checkpoints.move(partition, old, new)
            marked = self._uncleanable.get(old, {}).get(partition)
            if marked is not None:
                self.mark_partition_cleanable(old, partition)
                self._mark(new, partition, marked)

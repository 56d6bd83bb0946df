"""Cleaner threads: each thread repeatedly cleans the log with the largest dirty share and deletes old segments.

    cleaner = LogCleaner(fs, config, log_dirs, logs, failures)
    cleaner.startup()
    …
    cleaner.shutdown()

A thread cleans a small log itself; for a larger log, it runs tasks on Spark or in a pool of processes: see
`clean.CleanRunner`. If the clean of a log fails, it is retried after a pause, which grows each time. A failed round is
logged and counted, and never ends the thread.

Source: Kafka LogCleaner. `cleaner_manager` chooses the next log, and prevents other cleans of it meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cordwood.cleaning.engine.task import failure_of
from cordwood.common.config import BrokerConfig
from cordwood.common.errors import CleanFailedError, ConfigError, KafkaStorageError, LogCleaningAbortedError
from cordwood.common.text import bytes_text
from cordwood.common.types import Clock, TopicPartition, monotonic_clock, system_clock
from cordwood.fs.base import LocalFileSystem, is_full
from cordwood.fs.paced import limit_on_this_machine
from cordwood.live.clean import CleanedLog, CleanRunner, KeyMemory, LiveClean
from cordwood.live.cleaner_manager import Claim, LogCleanerManager, SelectionStats
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.log import Log
from cordwood.live.log_to_clean import LogToClean
from cordwood.live.metrics import MetricName, Reading, Total
from cordwood.live.tiered_log import TieredLog
from cordwood.storage.tier.generations import FencedError

_log = logging.getLogger(__name__)

#: The configs that may change while the cleaner runs.
RECONFIGURABLE = (
    "log.cleaner.threads",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    "message.max.bytes",
)
#: Number of logs whose old segments are deleted before the cleaner releases these logs.
_DELETED_AT_ONCE = 50


class _ShutdownError(Exception):
    """The thread of a clean must end."""


@dataclass(frozen=True, slots=True)
class CleanerStats:
    """Figures of one clean, as Kafka's cleaner reports them.

    Attributes:
        first_dirty_offset, end_offset: start and end of the cleaned section.
        key_share: the used part of the memory for keys.
    """

    partition: TopicPartition
    start_ms: int
    seconds: float
    first_dirty_offset: int
    end_offset: int
    bytes_read: int
    bytes_written: int
    messages_read: int
    messages_written: int
    invalid_messages_read: int
    key_share: float

    @classmethod
    def of(cls, found: LogToClean, cleaned: CleanedLog, start_ms: int, seconds: float) -> CleanerStats:
        """Return the figures of a clean."""
        counts = cleaned.counts
        return cls(
            found.partition,
            start_ms,
            seconds,
            found.first_dirty_offset,
            cleaned.end_offset,
            counts.bytes_read,
            counts.bytes_written,
            counts.records_read,
            counts.records_kept,
            counts.records_without_key,
            cleaned.key_share,
        )

    def document(self) -> dict[str, Any]:
        """Return all figures for programs; `size_reduction` is the removed share of the bytes read."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "size_reduction": 1 - self.bytes_written / max(self.bytes_read, 1),
            "bytes_per_second": round(self.bytes_read / max(self.seconds, 1e-9)),
        }

    def __str__(self) -> str:
        less = 1 - self.bytes_written / max(self.bytes_read, 1)
        return (
            f"cleaned {self.partition}: dirty offsets {self.first_dirty_offset} to {self.end_offset - 1}; "
            f"{self.messages_read:,} records, {bytes_text(self.bytes_read)} → {self.messages_written:,} records, "
            f"{bytes_text(self.bytes_written)} ({less:.0%} less) in {self.seconds:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class RunningClean:
    """A clean that a thread runs now."""

    clean: LiveClean
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Running time so far."""
        return time.monotonic() - self.began


@dataclass(slots=True)
class ThreadRecord:
    """A thread's current and last work.

    Attributes:
        running: the current clean; None between cleans.
        stats: figures of the last successful clean; None before the first.
        selection: counts from the last selection that chose a log.
    """

    running: RunningClean | None = None
    stats: CleanerStats | None = None
    selection: SelectionStats = field(default_factory=SelectionStats)

    @property
    def seconds(self) -> float:
        """Duration of the last successful clean."""
        return 0.0 if self.stats is None else self.stats.seconds

    @property
    def key_share(self) -> float:
        """The part of the memory for keys that the last successful clean used."""
        return 0.0 if self.stats is None else self.stats.key_share


class CleanerThread(threading.Thread):
    """Runs a cleaner's rounds until it is stopped."""

    def __init__(self, number: int, work: Callable[[CleanerThread], None]) -> None:
        super().__init__(name=f"kafka-log-cleaner-thread-{number}", daemon=True)
        self.record = ThreadRecord()
        self.stopping = threading.Event()
        self._work = work

    def run(self) -> None:
        """Run rounds until `stopping` is set."""
        self._work(self)

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended without a request to stop."""
        return not self.stopping.is_set() and not self.is_alive()


class LogCleaner:
    """Cleaner threads over a pool of live logs.

    Attributes:
        restarts: number of failed rounds; after each, the thread restarted its loop.
        on_clean: called by the cleaning thread after each successful clean, with the planned range and the figures.
        runner: runs the cleans, and counts the bytes that they read and write.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        config: BrokerConfig,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        clock: Clock = system_clock,
        monotonic: Clock = monotonic_clock,
        runner: CleanRunner | None = None,
        tiered: Callable[[TopicPartition], TieredLog | None] = lambda _: None,
    ) -> None:
        """Create missing checkpoint files; no thread runs before `startup`.

        Args:
            logs: returns the current logs; future logs are never cleaned.
            monotonic: the monotonic clock. With a clock other than the machine's, nothing is throttled.
            runner: runs the cleans; None: large logs are cleaned in a Spark session that starts with the first of them.
            tiered: returns a log that is open in its tier.
        """
        self._fs = fs
        self._config = config
        self._logs = logs
        self._failures = failures
        self._clock = clock
        self._monotonic = monotonic
        self._tiered = tiered
        self.restarts = 0
        self.on_clean: Callable[[LogToClean, CleanerStats], None] | None = None
        self.runner = runner or CleanRunner(fs, clock=monotonic)
        self.manager = LogCleanerManager(fs, log_dirs, logs, failures, monotonic)
        #: Held while threads are started or stopped.
        self._lifecycle = threading.RLock()
        self._threads: tuple[CleanerThread, ...] = ()
        self._is_shut_down = False
        #: The record for callers of `clean_filthiest_log` outside the threads.
        self._callers = ThreadRecord()
        self._last_deletion_ms: int | None = None
        self._throttling = ExitStack()
        self._throttle(config)

    # ---- start and end -----------------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start `log.cleaner.threads` threads, in addition to running threads."""
        with self._lifecycle:
            self._is_shut_down = False
            count = self._config.integer("log.cleaner.threads")
            first = len(self._threads)
            begun = tuple(CleanerThread(number, self._work) for number in range(first, first + count))
            self._threads += begun
            for thread in begun:
                thread.start()

    def shutdown(self) -> None:
        """Stop all threads, wait for them, and remove their metrics. A running clean is aborted."""
        with self._lifecycle:
            try:
                self._stop_threads()
            finally:
                self._is_shut_down = True
                self.runner.close()
                self._throttling.close()

    def _stop_threads(self) -> None:
        for thread in self._threads:
            thread.stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads = ()

    @property
    def reconfigurable_configs(self) -> tuple[str, ...]:
        """The configs that `reconfigure` applies."""
        return RECONFIGURABLE

    def validate_reconfiguration(self, config: BrokerConfig) -> None:
        """Check new configs.

        Raises:
            ConfigError: the number of threads would more than double, or fall below half.
        """
        old, new = (one.integer("log.cleaner.threads") for one in (self._config, config))
        if new < old // 2:
            raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")

    def reconfigure(self, old: BrokerConfig, new: BrokerConfig) -> None:
        """Apply new configs. Running and dead threads are replaced.

        Running cleans are aborted; groups that they have swapped in stay. Their logs are chosen again.
        """
        with self._lifecycle:
            is_running = bool(self._threads)
            self._stop_threads()
            self._config = new
            rate = "log.cleaner.io.max.bytes.per.second"
            if old[rate].value != new[rate].value:
                self._throttle(new)
            if is_running:
                self.startup()

    def _throttle(self, config: BrokerConfig) -> None:
        rate = config.real("log.cleaner.io.max.bytes.per.second")
        self._throttling.close()
        limited = 0 < rate < 2**63 and self._monotonic is monotonic_clock
        self.runner.limit = (
            self._throttling.enter_context(limit_on_this_machine(max(1, int(rate)))) if limited else None
        )

    # ---- calls by others ---------------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """See `LogCleanerManager.abort_cleaning`."""
        self.manager.abort_cleaning(partition)

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """See `LogCleanerManager.abort_and_pause_cleaning`."""
        self.manager.abort_and_pause_cleaning(partition)

    def resume_cleaning(self, partitions: Iterable[TopicPartition]) -> None:
        """See `LogCleanerManager.resume_cleaning`."""
        self.manager.resume_cleaning(partitions)

    def await_cleaned(self, partition: TopicPartition, offset: int, max_wait_ms: int = 60_000) -> bool:
        """Wait until a log is cleaned up to an offset; return whether it was in time."""
        end = time.monotonic() + max_wait_ms / 1000
        while (reached := self.manager.cleaned_to(partition)) < offset:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return reached >= offset

    # ---- metrics -----------------------------------------------------------------------------------------------------

    @property
    def threads(self) -> tuple[CleanerThread, ...]:
        """The threads that were started, and have not been stopped."""
        return self._threads

    @property
    def dead_thread_count(self) -> int:
        """Number of threads that ended without a request to stop."""
        return sum(thread.is_dead for thread in self._threads)

    def max_over_cleaner_threads(self, value: Callable[[ThreadRecord], float]) -> int:
        """Return the largest value of all threads, cut to a whole number; 0 without threads."""
        return int(max(map(value, self._records()), default=0))

    @property
    def last_stats(self) -> tuple[CleanerStats, ...]:
        """Figures of each thread's last successful clean."""
        return tuple(record.stats for record in self._records() if record.stats is not None)

    def _records(self) -> list[ThreadRecord]:
        return [*(thread.record for thread in self._threads), self._callers]

    def metrics(self) -> dict[MetricName, Reading]:
        """Return Kafka's cleaner metrics, thread restarts and byte counts; after a shutdown, only the throttler.

        `max-buffer-utilization-percent` is the used part of the memory for keys.
        """
        found: dict[MetricName, Reading] = {MetricName("kafka.utils", "Throttler", "cleaner-io"): self.runner.io.read()}
        if self._is_shut_down:
            return found
        last, manager, most = self.last_stats, self.manager, self.max_over_cleaner_threads
        read, written = sum(one.bytes_read for one in last), sum(one.bytes_written for one in last)
        for kind, name, value in (
            ("LogCleaner", "max-buffer-utilization-percent", most(lambda one: 100 * one.key_share)),
            ("LogCleaner", "cleaner-recopy-percent", 100 * written // max(read, 1)),
            ("LogCleaner", "max-clean-time-secs", most(lambda one: one.seconds)),
            ("LogCleaner", "max-compaction-delay-secs", most(lambda one: one.selection.max_compaction_delay_ms / 1000)),
            ("LogCleaner", "DeadThreadCount", self.dead_thread_count),
            ("LogCleanerManager", "max-dirty-percent", int(100 * manager.dirtiest_ratio)),
            ("LogCleanerManager", "time-since-last-run-ms", self._monotonic() - manager.last_run_ms),
        ):
            found[MetricName("kafka.log", kind, name)] = value
        for path in manager.log_dirs:
            for name, value in (
                ("uncleanable-partitions-count", len(manager.uncleanable_partitions(path))),
                ("uncleanable-bytes", manager.uncleanable_bytes(path, self._clock())),
            ):
                found[MetricName("kafka.log", "LogCleanerManager", name, (("logDirectory", path),))] = value
        traffic = self.runner.traffic
        of_ours: tuple[tuple[str, float], ...] = (
            ("thread-restart-count", Total(self.restarts)),
            ("bytes-read", Total(traffic.read)),
            ("bytes-written", Total(traffic.written)),
            ("bytes-new", Total(traffic.new)),
            ("read-per-new-byte", traffic.read / max(traffic.new, 1)),
            ("written-per-new-byte", traffic.written / max(traffic.new, 1)),
        )
        found.update((MetricName("cordwood.log", "LogCleaner", name), figure) for name, figure in of_ours)
        return found

    # ---- a thread ----------------------------------------------------------------------------------------------------

    def _work(self, thread: CleanerThread) -> None:
        """Run rounds until the thread must stop, even if rounds fail."""
        is_idle = False
        while not thread.stopping.is_set():
            try:
                self._do_rounds(thread, is_idle)
            except BaseException:
                self.restarts += 1
                is_idle = True
                with contextlib.suppress(BaseException):
                    _log.exception("a round of %s failed; it begins anew", thread.name)

    def _do_rounds(self, thread: CleanerThread, is_idle: bool) -> None:
        """Run rounds until one fails, with pauses while nothing is due."""
        while not thread.stopping.is_set():
            if is_idle:
                thread.stopping.wait(min(self._config.integer("log.cleaner.backoff.ms") / 1000, threading.TIMEOUT_MAX))
            is_idle = not self.clean_filthiest_log()

    def clean_filthiest_log(self) -> bool:
        """Run one round of a thread: clean the log with the largest dirty share, and delete old segments of all logs.

        Returns:
            whether a log was chosen, so that another may be due.
        """
        claim = self.manager.claim_filthiest_compacted_log(self._clock())
        chosen = claim is not None and self._clean(claim)
        self._delete_old_segments(idle=not chosen)
        self.manager.maintain_uncleanable_partitions()
        return chosen

    def _clean(self, claim: Claim) -> bool:
        """Clean a log; return whether to choose again at once."""
        thread = threading.current_thread()
        record = thread.record if isinstance(thread, CleanerThread) else self._callers
        record.selection = claim.selection
        start_ms, started = self._clock(), time.monotonic()

        def stop() -> None:
            if isinstance(thread, CleanerThread) and thread.stopping.is_set():
                raise _ShutdownError

        def check() -> None:
            stop()
            claim.check()

        @contextlib.contextmanager
        def changing() -> Iterator[None]:
            stop()
            with claim.changing():
                yield

        try:
            memory = KeyMemory.of(self._config)
            tiered = self._tiered(claim.found.partition)
            if tiered is not None:
                tiered.key_indexes.fetch(tiered.state.segments, check)
            with LiveClean(
                self._fs,
                claim.found,
                start_ms,
                claim.check,
                memory,
                index=self.runner.index,
                tiered=tiered,
            ) as clean:
                record.running = RunningClean(clean)
                cleaned = clean.finish(self.runner.run(clean, stop, thread.name), changing)
        except Exception as error:
            return self._failed(claim, error)
        else:
            seconds = time.monotonic() - started
            self._succeeded(claim, cleaned, CleanerStats.of(claim.found, cleaned, start_ms, seconds), record)
            return True
        finally:
            record.running = None
            self.manager.release(claim, claim.found.first_dirty_offset)

    def _succeeded(self, claim: Claim, cleaned: CleanedLog, stats: CleanerStats, record: ThreadRecord) -> None:
        found, seen = claim.found, claim.selection
        record.stats = stats
        self.runner.traffic.add(removed=max(0, stats.bytes_read - stats.bytes_written))
        _log.info("%s", stats, extra={"event": "clean", "fields": stats.document()})
        if stats.invalid_messages_read:
            _log.warning("%d messages of %s without a key are gone", stats.invalid_messages_read, stats.partition)
        if seen.delayed_partitions:
            _log.info(
                "%d logs were due, %d of them past max.compaction.lag.ms, by %d ms at most",
                *(seen.cleanable_partitions, seen.delayed_partitions, seen.max_compaction_delay_ms),
            )
        self.manager.note_clean(found.log.parent_directory, found.partition)
        self.manager.release(claim, cleaned.end_offset)
        if self.on_clean is not None:
            try:
                self.on_clean(found, stats)
            except Exception:
                _log.exception("the program's own on_clean failed for %s", found.partition)

    def _failed(self, claim: Claim, error: Exception) -> bool:
        """Handle a failed or aborted clean; return whether to choose again at once."""
        partition, log = claim.found.partition, claim.found.log
        if claim.is_lost or isinstance(error, LogCleaningAbortedError):
            _log.info("the clean of %s was aborted", partition)
            return True
        if isinstance(error, FencedError) and (tiered := self._tiered(partition)) is not None:
            tiered.fence(error)
            return False
        if isinstance(error, _ShutdownError | KafkaStorageError):  # a KafkaStorageError took the directory offline
            return False
        if isinstance(error, OSError) and not is_full(error):
            self._failures.maybe_add_offline_log_dir(log.parent_directory, f"Cleaning {partition}", error)
            return False
        self._mark(partition, log, error)
        return True

    def _mark(self, partition: TopicPartition, log: Log, error: Exception) -> None:
        """Pause a log's cleans for a while."""
        kind = error.kind if isinstance(error, CleanFailedError) else failure_of(error, log.directory).kind
        reason = str(error) or type(error).__name__
        marked = self.manager.note_failure(log.parent_directory, partition, reason, kind)
        _log.error(
            "the clean of %s failed, and is tried again in %d s: %s",
            *(partition, self.manager.seconds_to_retry(marked), error),
            exc_info=None if isinstance(error, CleanFailedError | OSError) else error,
        )

    def _delete_old_segments(self, *, idle: bool) -> None:
        """Delete old segments of all logs without a state: once per `log.cleaner.backoff.ms`, and when idle.

        Kafka does this after each clean. With thousands of logs it takes longer than a small clean.
        """
        now_ms, last_ms = self._monotonic(), self._last_deletion_ms
        if not idle and last_ms is not None and now_ms - last_ms < self._config.integer("log.cleaner.backoff.ms"):
            return
        self._last_deletion_ms = now_ms
        partitions = list(self._logs())
        for first in range(0, len(partitions), _DELETED_AT_ONCE):
            deletable = self.manager.deletable_logs(partitions[first : first + _DELETED_AT_ONCE])
            with ExitStack() as ending:
                for partition in deletable:
                    ending.callback(self.manager.done_deleting, [partition])
                for partition, log in deletable.items():
                    self._delete_old_segments_of(partition, log)

    def _delete_old_segments_of(self, partition: TopicPartition, log: Log) -> None:
        try:
            self.manager.check_cleaning_aborted(partition)
            log.delete_old_segments()
        except LogCleaningAbortedError:
            pass  # a later round deletes them
        except KafkaStorageError:
            _log.exception("Failed to delete old segments of %s", partition)
        except Exception as error:
            self._mark(partition, log, error)

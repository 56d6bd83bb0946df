"""Cleaner threads: each picks the filthiest log, cleans it, deletes what is too old, and begins again.

    cleaner = LogCleaner(fs, config, log_dirs, logs, failures)
    cleaner.startup()
    …
    cleaner.shutdown()

A log that is small is cleaned by the thread itself, a larger one on Spark, in one session that all threads share. A
log whose clean fails is left alone for a while, longer each time, and then tried again. A thread never ends by itself:
what a round raises is logged and counted.

Source: Kafka LogCleaner. Which log comes next, and who may touch it meanwhile, is in `cleaner_manager`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cordwood.clock import Clock, system_clock
from cordwood.config import BrokerConfig
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask
from cordwood.errors import CleanFailedError, ConfigError, KafkaStorageError, LogCleaningAbortedError
from cordwood.fs.base import LocalFileSystem, is_full
from cordwood.fs.checked import Check
from cordwood.fs.throttled import Limit, limit_on_this_machine, throttled
from cordwood.service.clean import PROGRESS, CleanedLog, clean_log, run_here
from cordwood.service.cleaner_manager import LogCleanerManager, LogToClean
from cordwood.service.failures import LogDirFailureChannel
from cordwood.service.log import Log
from cordwood.service.metrics import MetricName, Reading
from cordwood.spark.hanging import looked_at
from cordwood.spark.jobs import Jobs
from cordwood.spark.session import LOCAL_MASTER, session
from cordwood.tables import bytes_text
from cordwood.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: The configs that may change while it runs.
RECONFIGURABLE = (
    "log.cleaner.threads",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    "message.max.bytes",
)
#: From this size on a clean is run on Spark: below it, one thread is done before a job has handed out its tasks.
SPARK_BYTES_MIN = 256 << 20
#: After the first failure of a log, and at most; it doubles with each further one.
_RETRY_MS, _RETRY_MS_MAX = 60_000, 3_600_000


class _ShutdownError(Exception):
    """The thread of a clean has to end."""


@dataclass(frozen=True, slots=True)
class CleanerStats:
    """One clean, as Kafka's cleaner reports it.

    Attributes:
        partition: that was cleaned.
        start_ms: when it began.
        seconds: how long it took.
        first_dirty_offset, end_offset: of the section that was cleaned.
        bytes_read, bytes_written: of batches.
        messages_read, messages_written: records.
        invalid_messages_read: records without a key; they are gone.
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

    @classmethod
    def of(cls, found: LogToClean, cleaned: CleanedLog, start_ms: int, seconds: float) -> CleanerStats:
        """The figures of a clean."""
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
        )

    def document(self) -> dict[str, Any]:
        """All figures for programs; `size_reduction` is the part of the bytes read that is gone."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "partition": str(self.partition),
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


class LogCleaner:
    """Cleaner threads over a pool of live logs.

    Attributes:
        manager: the states and checkpoints of the logs.
        restarts: how often the loop of a thread failed and began anew.
        on_clean: called after each clean that succeeded, by the thread that did it, with what it was to go over.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        config: BrokerConfig,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        clock: Clock = system_clock,
        *,
        spark: SparkSession | None = None,
        master: str = LOCAL_MASTER,
        spark_bytes_min: int = SPARK_BYTES_MIN,
        strict_kafka: bool = False,
    ) -> None:
        """Makes the missing checkpoint files; no thread runs before `startup`.

        Args:
            fs: where the logs are.
            config: the broker's configs.
            log_dirs: those that work.
            logs: gives the current logs; future ones are never cleaned.
            failures: of log directories.
            clock: the time.
            spark: the session for large logs, which is left running; None: one is started with the first of them.
            master: where such a session runs.
            spark_bytes_min: from which size on a log is cleaned on Spark.
            strict_kafka: fail where Kafka's cleaner fails for good.
        """
        self._fs = fs
        self._config = config
        self._failures = failures
        self._clock = clock
        self._spark, self._master, self._spark_bytes_min = spark, master, spark_bytes_min
        self._strict_kafka = strict_kafka
        self.manager = LogCleanerManager(fs, log_dirs, logs, failures, clock)
        self.restarts = 0
        self.on_clean: Callable[[LogToClean, CleanerStats], None] | None = None
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        #: Of the last successful clean of each thread, by the thread's name.
        self._last: dict[str, CleanerStats] = {}
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._limit = self._new_limit()

    # ---- start and end -----------------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start `log.cleaner.threads` threads; with 0 of them nothing is cleaned."""
        threads = self._config.integer("log.cleaner.threads")
        if not threads:
            _log.warning("log.cleaner.threads is 0: no log is compacted")
        self._stopping.clear()
        first = len(self._threads)
        for number in range(first, first + threads):
            thread = threading.Thread(target=self._work, name=f"kafka-log-cleaner-thread-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def shutdown(self) -> None:
        """Stop all threads, and wait for them; a clean that runs leaves its log as it was."""
        self._stop_threads()
        self._open.close()

    def _stop_threads(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Go on with other configs; cleans that run are given up, and their logs are chosen anew.

        Raises:
            ConfigError: more than twice, or less than half, as many threads as now.
        """
        old, new = (one.integer("log.cleaner.threads") for one in (self._config, config))
        if new < 1:
            raise ConfigError("New cleaner thread count should be at least 1")
        if new < old // 2:
            raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")
        changed = any(self._config[name].value != config[name].value for name in RECONFIGURABLE)
        self._config = config
        if changed:
            self._stop_threads()
            self._limit = self._new_limit()
            self.startup()

    def _new_limit(self) -> Limit | None:
        rate = self._config.real("log.cleaner.io.max.bytes.per.second")
        if rate >= 2**63:
            return None
        return self._open.enter_context(limit_on_this_machine(max(1, int(rate))))

    # ---- calls of others ---------------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """See `LogCleanerManager.abort_cleaning`."""
        self.manager.abort_cleaning(partition)

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """See `LogCleanerManager.abort_and_pause_cleaning`."""
        self.manager.abort_and_pause_cleaning(partition)

    def resume_cleaning(self, partitions: Iterable[TopicPartition]) -> None:
        """See `LogCleanerManager.resume_cleaning`."""
        self.manager.resume_cleaning(partitions)

    def pause_cleaning_for_non_compacted_partitions(self) -> dict[TopicPartition, Log]:
        """See `LogCleanerManager.pause_cleaning_for_non_compacted_partitions`."""
        return self.manager.pause_cleaning_for_non_compacted_partitions()

    def update_checkpoints(self, log_dir: str, *, remove: TopicPartition | None = None) -> None:
        """See `LogCleanerManager.update_checkpoints`."""
        self.manager.update_checkpoints(log_dir, remove=remove)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """See `LogCleanerManager.maybe_truncate_checkpoint`."""
        self.manager.maybe_truncate_checkpoint(log_dir, partition, offset)

    def alter_checkpoint_dir(self, partition: TopicPartition, source: str, target: str) -> None:
        """See `LogCleanerManager.alter_checkpoint_dir`."""
        self.manager.alter_checkpoint_dir(partition, source, target)

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """See `LogCleanerManager.handle_log_dir_failure`."""
        self.manager.handle_log_dir_failure(log_dir)

    def await_cleaned(self, partition: TopicPartition, offset: int, max_wait_ms: int = 60_000) -> bool:
        """Wait until a log is cleaned up to an offset; returns whether it was in time."""
        end = time.monotonic() + max_wait_ms / 1000
        while (reached := self.manager.all_cleaner_checkpoints().get(partition, -1)) < offset:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return reached >= offset

    @property
    def dead_thread_count(self) -> int:
        """Threads that ended without being asked to."""
        return 0 if self._stopping.is_set() else sum(not thread.is_alive() for thread in self._threads)

    @property
    def last_stats(self) -> tuple[CleanerStats, ...]:
        """The last successful clean of each thread."""
        with self._lock:
            return tuple(self._last.values())

    def metrics(self) -> dict[MetricName, Reading]:
        """Kafka's metrics of a cleaner; what is about Kafka's buffers is left out."""
        last, manager = self.last_stats, self.manager
        read, written = sum(one.bytes_read for one in last), sum(one.bytes_written for one in last)
        found: dict[MetricName, Reading] = {}
        for kind, name, value in (
            ("LogCleaner", "cleaner-recopy-percent", 100 * written // max(read, 1)),
            ("LogCleaner", "max-clean-time-secs", int(max((one.seconds for one in last), default=0))),
            ("LogCleaner", "max-compaction-delay-secs", manager.longest_delay_ms // 1000),
            ("LogCleaner", "DeadThreadCount", self.dead_thread_count),
            ("LogCleanerManager", "max-dirty-percent", int(100 * manager.dirtiest_ratio)),
            ("LogCleanerManager", "time-since-last-run-ms", self._clock() - manager.last_run_ms),
        ):
            found[MetricName("kafka.log", kind, name)] = value
        for path in manager.log_dirs:
            for name, value in (
                ("uncleanable-partitions-count", len(manager.uncleanable_partitions(path))),
                ("uncleanable-bytes", manager.uncleanable_bytes(path)),
            ):
                found[MetricName("kafka.log", "LogCleanerManager", name, (("logDirectory", path),))] = value
        return found

    # ---- a thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                cleaned = self.clean_filthiest_log()
            except BaseException:
                _log.exception("a round of %s failed; it begins anew", threading.current_thread().name)
                self.restarts += 1
                cleaned = False
            if not cleaned:
                self._stopping.wait(self._config.integer("log.cleaner.backoff.ms") / 1000)

    def clean_filthiest_log(self) -> bool:
        """What a thread does again and again: clean one log, if one is due, and delete what is too old in all of them.

        Returns:
            whether a log was chosen, so that there may be another one.
        """
        found = self.manager.grab_filthiest_compacted_log(self._clock())
        chosen = found is not None and self._clean(found)
        self._delete_old_segments()
        self.manager.maintain_uncleanable_partitions()
        return chosen

    def _clean(self, found: LogToClean) -> bool:
        partition, log = found.partition, found.log
        start_ms, started, end = self._clock(), time.monotonic(), found.first_dirty_offset

        def check() -> None:
            if self._stopping.is_set():
                raise _ShutdownError
            self.manager.check_cleaning_aborted(partition)

        try:
            cleaned = clean_log(self._fs, found, start_ms, self._run, check, strict_kafka=self._strict_kafka)
            end = cleaned.end_offset
            stats = CleanerStats.of(found, cleaned, start_ms, time.monotonic() - started)
            with self._lock:
                self._last[threading.current_thread().name] = stats
            _log.info("%s", stats, extra={"event": "clean", "fields": stats.document()})
            self.manager.mark_partition_cleanable(log.parent_directory, partition)
            if self.on_clean is not None:
                self.on_clean(found, stats)
            return True
        except LogCleaningAbortedError:
            _log.info("the clean of %s was aborted", partition)
            return True
        except _ShutdownError:
            return False
        except KafkaStorageError:
            return False  # the directory is offline by now
        except OSError as error:
            if not is_full(error):
                self._failures.maybe_add_offline_log_dir(log.parent_directory, f"Cleaning {partition}", error)
                return False
            self._mark(found, error)
            return True
        except Exception as error:
            self._mark(found, error)
            return True
        finally:
            self.manager.done_cleaning(partition, log.parent_directory, end)

    def _mark(self, found: LogToClean, error: Exception) -> None:
        """Leave a log alone for a while."""
        known = self.manager.uncleanable(found.partition)
        failures = 1 if known is None else known.failures + 1
        wait_ms = min(_RETRY_MS << min(failures - 1, 10), _RETRY_MS_MAX)
        known_error = isinstance(error, CleanFailedError | OSError)
        _log.error(
            "the clean of %s failed, and is tried again in %d s: %s",
            *(found.partition, wait_ms // 1000, error),
            exc_info=None if known_error else error,
        )
        self.manager.mark_partition_uncleanable(
            found.log.parent_directory, found.partition, str(error), retry_at_ms=self._clock() + wait_ms
        )

    def _delete_old_segments(self) -> None:
        deletable = self.manager.deletable_logs()
        try:
            for partition, log in deletable.items():
                try:
                    log.delete_old_segments()
                except KafkaStorageError:
                    _log.exception("Failed to delete old segments of %s", partition)
        finally:
            self.manager.done_deleting(deletable)

    # ---- where a clean runs ------------------------------------------------------------------------------------------

    def _run(self, task: PartitionTask, outputs: str, check: Check) -> Output | Failure:
        if task.size_bytes // 2 < self._spark_bytes_min or task.location.in_this_process:
            outcome = run_here(task, outputs, check, self._limit)
            if not isinstance(outcome, Failure) or outcome.kind is not FailureKind.MEMORY:
                return outcome
        fs = throttled(self._fs, self._limit)
        progress = f"{outputs}/{PROGRESS}"
        if not self._fs.exists(progress):
            self._fs.make_directory(progress)
        spark = self._session()
        spark.sparkContext.setJobGroup(threading.current_thread().name, f"clean {task.path}", interruptOnCancel=True)
        with looked_at(lambda _: check()), Jobs(fs, progress, spark, self._master, None) as jobs:
            return jobs.clean([task], outputs)[0]

    def _session(self) -> SparkSession:
        with self._lock:
            if self._spark is None:
                self._spark = self._open.enter_context(session(None, master=self._master))
            return self._spark

"""The live logs of many log directories: loaded, kept, and shut down together.

    manager = LogManager(fs, ["/disk1", "/disk2"], layers)
    manager.startup()
    log = manager.get_or_create_log(TopicPartition("orders", 0))
    …
    manager.shutdown()

A directory is locked as a broker locks it, so a broker and a manager exclude each other. One that fails goes offline,
with its logs; the others live on. What is done again and again (retention, checkpoints, flushing, removal of deleted
logs) are tasks of one scheduler. Compacted logs are cleaned by threads of a `LogCleaner`; with a scheduler that is
passed in, by a task of it.

Source: Kafka LogManager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.clock import Clock, system_clock
from cordwood.config import BrokerConfig, Layer, Source, SourceKind, TopicConfig, resolve, resolve_broker
from cordwood.errors import IllegalStateError, KafkaStorageError, LogDirNotFoundError, LogError
from cordwood.fs.base import LocalFileSystem
from cordwood.service.failures import LogDirFailureChannel
from cordwood.service.log import FetchIsolation, Log, ProducerLimits, load_log
from cordwood.service.log_cleaner import LogCleaner
from cordwood.service.log_directory import LiveDirectory
from cordwood.service.scheduler import Scheduler, ThreadScheduler
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.node.directory import Partition
from cordwood.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_COPY_BYTES = 1 << 20
#: Of a follower that takes batches of every leader.
_ANY_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A log whose directory waits for its removal."""

    log: Log
    since_ms: int


class LogManager:
    """The logs of one or more log directories; only one thread at a time may start it up or shut it down.

    Attributes:
        failures: which directories failed, and why.
        config: the broker's configs.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Sequence[str],
        layers: Iterable[Layer] = (),
        *,
        clock: Clock = system_clock,
        scheduler: Scheduler | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            fs: where the directories are.
            log_dirs: paths of the log directories.
            layers: configs of the broker, and of topics.
            clock: the time.
            scheduler: runs what is to be done later; default: threads, for as long as the manager runs.
            spark: the session in which large logs are cleaned; None: one is started with the first of them.

        Raises:
            ConfigError: a config that Kafka would refuse.
        """
        self.failures = LogDirFailureChannel()
        self._layers = list(layers)
        self.config: BrokerConfig = resolve_broker(self._layers)
        self._fs = fs
        self._paths = list(log_dirs)
        self._clock = clock
        self._own = ThreadScheduler(clock) if scheduler is None else None
        self._scheduler: Scheduler = scheduler or self._own or ThreadScheduler(clock)
        self._spark = spark
        #: Cleans the compacted logs while the manager runs; None: `log.cleaner.enable` is false.
        self.cleaner: LogCleaner | None = None
        self._directories: dict[str, LiveDirectory] = {}
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        self._deleted: deque[_Deleted] = deque()
        #: Guards the maps of logs.
        self._lock = threading.RLock()
        #: Held, outside the other one, while a log is made or its directory renamed; a clean may be waited for.
        self._creation = threading.RLock()
        #: Held while a checkpoint file is written, so that older offsets do not come last.
        self._checkpointing = threading.Lock()

    # ---- start and end -----------------------------------------------------------------------------------------------

    def startup(self, on_progress: Callable[[str, int, int], None] | None = None) -> None:
        """Lock all directories, load all their logs, begin with the tasks.

        Args:
            on_progress: called with a directory, how many of its logs are loaded, and of how many.

        Raises:
            LockedError: a broker, or another manager, has a directory.
            KafkaStorageError: no directory is left.
            IllegalStateError: a partition is in two directories.
            CordwoodError: a log cannot be loaded, and its disk is not to blame.
        """
        try:
            for path in self._paths:
                try:
                    directory = LiveDirectory(self._fs, path, self.failures)
                except OSError as error:
                    self._fail(self._fs.absolute_path(path), "Failed to create or validate the data directory", error)
                    continue
                if directory.path in self._directories:
                    directory.release()
                    raise IllegalStateError(f"Duplicate log directory {directory.path}")
                self._directories[directory.path] = directory
            with ThreadPoolExecutor(max(1, len(self._directories)), "log-loading") as pool:
                for done in [pool.submit(self._load, one, on_progress) for one in self._directories.values()]:
                    done.result()
            self._drop_failed()
        except BaseException:
            self._release()
            raise
        if self._own is not None:
            self._own.startup()
        self._schedule()
        self._start_cleaner()

    def _start_cleaner(self) -> None:
        if not self.config.flag("log.cleaner.enable"):
            return
        self.cleaner = LogCleaner(
            self._fs,
            self.config,
            self.live_log_dirs,
            self._current_logs,
            self.failures,
            self._clock,
            spark=self._spark,
        )
        if self._own is not None:
            self.cleaner.startup()
        else:
            backoff_ms = max(1, self.config.integer("log.cleaner.backoff.ms"))
            self._scheduler.schedule("log-cleaner", self._clean_logs, period_ms=backoff_ms)

    def _clean_logs(self) -> None:
        """What the threads of the cleaner do, until nothing is due."""
        while self.cleaner is not None and self.cleaner.clean_filthiest_log():
            pass

    def _current_logs(self) -> Mapping[TopicPartition, Log]:
        with self._lock:
            return dict(self._current)

    def shutdown(self) -> None:
        """Flush and close all logs; a directory in which all goes well is marked as shut down properly."""
        if self.cleaner is not None:
            self.cleaner.shutdown()
        if self._own is not None:
            self._own.shutdown()
        self.checkpoint_high_watermarks()
        try:
            for directory in list(self._directories.values()):
                self._close(directory)
        finally:
            self._release()

    def _release(self) -> None:
        for directory in self._directories.values():
            directory.release()
        self._directories.clear()

    @property
    def _threads(self) -> int:
        return self.config.integer("num.recovery.threads.per.data.dir")

    # ---- loading -----------------------------------------------------------------------------------------------------

    def _load(self, directory: LiveDirectory, on_progress: Callable[[str, int, int], None] | None) -> None:
        """Load all logs of a directory."""
        try:
            directory.take_clean_shutdown()
            partitions = directory.partitions()
        except OSError as error:
            self._fail(directory.path, "Error while loading log dir", error)
            return
        points = directory.offsets(filenames.RECOVERY_POINTS)
        starts = directory.offsets(filenames.LOG_START_OFFSETS)
        done, counting = 0, threading.Lock()

        def load(partition: Partition) -> None:
            nonlocal done
            try:
                self._load_one(directory, partition, points, starts)
            except OSError as error:
                self._fail(directory.path, f"Error while loading {partition.path}", error)
            with counting:
                done += 1
                if on_progress is not None:
                    on_progress(directory.path, done, len(partitions))

        with ThreadPoolExecutor(self._threads, f"log-recovery-{directory.path}") as pool:
            for loaded in [pool.submit(load, partition) for partition in partitions]:
                loaded.result()
        directory.is_loaded = not self.failures.is_offline(directory.path)

    def _load_one(
        self,
        directory: LiveDirectory,
        partition: Partition,
        points: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        name, state = partition.name.topic_partition, partition.name.state
        if state is DirectoryState.STRAY:
            return
        is_deleted = state is DirectoryState.DELETED
        log = self._open(
            partition.path,
            name.topic,
            clean_shutdown=directory.was_clean or is_deleted,
            recovery_point=0 if is_deleted else points.get(name, 0),
            log_start_offset=0 if is_deleted else starts.get(name, 0),
        )
        with self._lock:
            if is_deleted:
                self._deleted.append(_Deleted(log, self._clock()))
                return
            logs = self._future if state is DirectoryState.FUTURE else self._current
            if name in logs:
                raise IllegalStateError(
                    f"Duplicate log directories for {name} are found in both {logs[name].directory} and "
                    f"{partition.path}. It is likely because log directory failure happened while broker was replacing "
                    "current replica with future replica. Recover broker from this failure by manually deleting one of "
                    "the two directories for this partition. It is recommended to delete the partition in the log "
                    "directory that is known to have failed recently."
                )
            logs[name] = log

    def _open(self, path: str, topic: str, *, clean_shutdown: bool, recovery_point: int, log_start_offset: int) -> Log:
        number = self.config.integer
        return load_log(
            self._fs,
            path,
            self.topic_config(topic),
            self._clock,
            self._scheduler,
            self.failures,
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            limits=ProducerLimits(
                number("producer.id.expiration.ms"),
                number("producer.id.expiration.check.interval.ms"),
                number("transaction.max.timeout.ms"),
            ),
        )

    def _close(self, directory: LiveDirectory) -> None:
        """Close the logs of a directory, and say that it was shut down properly."""

        def close(log: Log) -> None:
            log.flush(force_active_segment=True)
            log.close()

        logs = self._in(directory)
        with ThreadPoolExecutor(self._threads, f"log-closing-{directory.path}") as pool:
            closed = [pool.submit(close, log) for log in logs]
        errors = [error for one in closed if (error := one.exception()) is not None]
        if errors:
            _log.warning("There was an error in one of the threads during LogManager shutdown", exc_info=errors[0])
            return
        self._checkpoint(directory, filenames.RECOVERY_POINTS, lambda log: log.recovery_point)
        self._checkpoint(directory, filenames.LOG_START_OFFSETS, _start_offset)
        if directory.was_clean or directory.is_loaded:
            directory.write_clean_shutdown()

    # ---- logs --------------------------------------------------------------------------------------------------------

    @property
    def all_logs(self) -> tuple[Log, ...]:
        """Current and future logs."""
        with self._lock:
            return (*self._current.values(), *self._future.values())

    @property
    def live_log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return tuple(path for path in self._directories if not self.failures.is_offline(path))

    def is_log_dir_online(self, directory: str) -> bool:
        """Whether a directory works.

        Raises:
            LogDirNotFoundError: it is none of the manager's.
        """
        path = self._fs.absolute_path(directory)
        if path not in map(self._fs.absolute_path, self._paths):
            raise LogDirNotFoundError(f"Log dir {directory} is not found in the config.")
        return path in self.live_log_dirs

    def get_log(self, partition: TopicPartition, *, is_future: bool = False) -> Log | None:
        """The log of a partition, if it is here."""
        with self._lock:
            return (self._future if is_future else self._current).get(partition)

    def get_or_create_log(self, partition: TopicPartition, *, is_new: bool = False) -> Log:
        """The log of a partition; a missing one is made in the live directory with the fewest logs.

        Args:
            partition: which.
            is_new: it was never anywhere. Otherwise it may be in a directory that is offline.

        Raises:
            KafkaStorageError: no directory is left to make it in, or one is offline that may have it.
            BadNameError: Kafka has no topic of that name.
        """
        with self._creation:
            log = self._current.get(partition)
            if log is not None:
                return log
            if not is_new and self.failures.failures:
                raise KafkaStorageError(
                    f"Can not create log for {partition} because log directories "
                    f"{', '.join(one.directory for one in self.failures.failures)} are offline"
                )
            filenames.check_topic(partition.topic)
            logs = self.all_logs
            by_load = sorted(self.live_log_dirs, key=lambda path: sum(log.parent_directory == path for log in logs))
            return self._create(partition, {path: f"{path}/{partition}" for path in by_load}, self._current)

    def _create(self, partition: TopicPartition, paths: Mapping[str, str], logs: dict[TopicPartition, Log]) -> Log:
        """Make a log at the first of some paths (by log directory) that works."""
        problems = []
        for directory, path in paths.items():
            try:
                log = self._open(path, partition.topic, clean_shutdown=True, recovery_point=0, log_start_offset=0)
            except OSError as error:
                self._fail(directory, f"Error while creating log for {partition}", error)
                problems.append(f"{directory}: {error}")
                continue
            with self._lock:
                logs[partition] = log
            return log
        raise KafkaStorageError(f"No log directory is left to create {partition} in. {' '.join(problems)}".strip())

    def move_partition(self, partition: TopicPartition, directory: str) -> Log:
        """Move a log to another log directory, while it is used; goes on with a move that was interrupted.

        A future log there gets all that the log has, then takes its place. From then on the old `Log` refuses every
        call, and its files go as those of a deleted log do.

        Args:
            partition: which; it is not cleaned meanwhile.
            directory: one of the manager's.

        Returns:
            the log as it is now.

        Raises:
            LogDirNotFoundError: the directory is none of the manager's.
            KafkaStorageError: it is offline, or the log is; or there is no such log.
        """
        path = self._fs.absolute_path(directory)
        if not self.is_log_dir_online(directory):
            raise KafkaStorageError(f"Log directory {directory} is offline")
        current = self.get_log(partition)
        if current is None:
            raise KafkaStorageError(f"There is no log of {partition}, or it is in a directory that is offline")
        if current.parent_directory == path:
            return current
        if self.cleaner is not None:
            self.cleaner.abort_and_pause_cleaning(partition)
        try:
            future = self._future_log(partition, path)
            _copy(current, future)
            with self._creation, current.unchanged():
                _copy(current, future)
                return self._replace_current_with_future_log(partition, current, future)
        finally:
            if self.cleaner is not None:
                self.cleaner.resume_cleaning([partition])

    def _future_log(self, partition: TopicPartition, path: str) -> Log:
        """The log that is to take a partition's place; one in another directory is dropped."""
        with self._creation:
            future = self.get_log(partition, is_future=True)
            if future is not None and future.parent_directory != path:
                with self._lock:
                    del self._future[partition]
                self._delete_later(partition, future)
                future = None
            if future is None:
                where = {path: self._directories[path].directory_for_future(partition)}
                future = self._create(partition, where, self._future)
            return future

    def _replace_current_with_future_log(self, partition: TopicPartition, current: Log, future: Log) -> Log:
        if self.get_log(partition) is not current:
            raise KafkaStorageError(f"The log of {partition} was deleted or moved meanwhile")
        source, target = current.parent_directory, future.parent_directory
        # A crash between the two renames leaves two whole logs, and the next start refuses them. The other way round
        # it would find none, and make an empty one.
        future.rename_directory(f"{target}/{partition}")
        self._delete_later(partition, current)
        future.update_high_watermark(current.high_watermark)
        with self._lock:
            self._current[partition] = future
            self._future.pop(partition, None)
        if self.cleaner is not None:
            self.cleaner.alter_checkpoint_dir(partition, source, target)
        current.close_handlers()
        for path in (source, target):
            self._checkpoint(self._directories[path], filenames.RECOVERY_POINTS, lambda log: log.recovery_point)
            self._checkpoint(self._directories[path], filenames.LOG_START_OFFSETS, _start_offset)
        return future

    def _delete_later(self, partition: TopicPartition, log: Log) -> None:
        log.rename_directory(self._directories[log.parent_directory].directory_for_deletion(partition))
        self._deleted.append(_Deleted(log, self._clock()))

    def async_delete(self, partition: TopicPartition) -> Log | None:
        """Take a log out, and remove its files later; returns it, None if it is not here.

        Raises:
            KafkaStorageError: it may be in a directory that is offline; or the disk.
            IllegalStateError: somebody else waits until a clean of it has stopped; the log stays.
        """
        with self._creation:
            with self._lock:
                log = self._current.pop(partition, None)
            if log is None:
                if self.failures.failures:
                    raise KafkaStorageError(f"Failed to delete log for {partition} because it may be in an offline dir")
                return None
            if self.cleaner is not None:
                try:
                    self.cleaner.abort_cleaning(partition)
                except LogError:  # somebody else waits for an abort
                    with self._lock:
                        self._current[partition] = log
                    raise
                self.cleaner.update_checkpoints(log.parent_directory, remove=partition)
            directory = self._directories[log.parent_directory]
            self._delete_later(partition, log)
        self._checkpoint(directory, filenames.RECOVERY_POINTS, lambda one: one.recovery_point)
        self._checkpoint(directory, filenames.LOG_START_OFFSETS, _start_offset)
        return log

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Truncate logs, and write down where they are flushed to now; partitions that are not here are passed over."""
        affected = []
        for partition, offset in offsets.items():
            log = self.get_log(partition, is_future=is_future)
            if log is not None:
                below = offset < log.active_segment.base_offset
                with self._cleaning_paused(partition, log, when=below and not is_future):
                    if log.truncate_to(offset):
                        affected.append(log)
        self._checkpoint_of(affected)

    def truncate_fully_and_start_at(
        self, partition: TopicPartition, offset: int, *, is_future: bool = False, log_start_offset: int | None = None
    ) -> None:
        """Remove everything in a log, and go on at an offset."""
        log = self.get_log(partition, is_future=is_future)
        if log is not None:
            with self._cleaning_paused(partition, log, when=not is_future):
                log.truncate_fully_and_start_at(offset, log_start_offset)
            self._checkpoint_of([log])

    @contextlib.contextmanager
    def _cleaning_paused(self, partition: TopicPartition, log: Log, *, when: bool) -> Iterator[None]:
        """In the block, a log that is truncated is not cleaned; afterwards its checkpoint is not above its end."""
        if self.cleaner is None or not when:
            yield
            return
        self.cleaner.abort_and_pause_cleaning(partition)
        try:
            yield
            base = log.active_segment.base_offset
            self.cleaner.maybe_truncate_checkpoint(log.parent_directory, partition, base)
        finally:
            self.cleaner.resume_cleaning([partition])

    def _checkpoint_of(self, logs: Iterable[Log]) -> None:
        for path in {log.parent_directory for log in logs}:
            self._checkpoint(self._directories[path], filenames.RECOVERY_POINTS, lambda log: log.recovery_point)

    # ---- configs -----------------------------------------------------------------------------------------------------

    def topic_config(self, topic: str) -> TopicConfig:
        """The configs of a topic."""
        return resolve(topic, self._layers)

    def update_topic_config(self, topic: str, texts: Mapping[str, str]) -> None:
        """Replace a topic's own configs; its logs use them from now on.

        Raises:
            ConfigError: a value that Kafka would refuse; nothing has changed.
        """
        changed = Layer(Source(SourceKind.TOPIC, "update_topic_config", topic), dict(texts))
        kept = [one for one in self._layers if (one.source.kind, one.source.subject) != (SourceKind.TOPIC, topic)]
        config = resolve(topic, [*kept, changed])
        with self._lock:
            self._layers = [*kept, changed]
            known = [*self._current.items(), *self._future.items()]
        logs = [(name, log) for name, log in known if name.topic == topic]
        for partition, log in logs:
            self._update(partition, log, config)

    def _update(self, partition: TopicPartition, log: Log, config: TopicConfig) -> None:
        was_compacted = log.config.compact
        log.update_config(config)
        if self.cleaner is not None:
            # A clean that has failed may succeed with other configs.
            self.cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
            if was_compacted and not config.compact:
                self.cleaner.abort_cleaning(partition)

    def reconfigure(self, layers: Iterable[Layer]) -> None:
        """Go on with other configs of the broker and of topics; those of the cleaner and of logs are used at once.

        Raises:
            ConfigError: a value that Kafka would refuse; nothing has changed.
        """
        layers = list(layers)
        config = resolve_broker(layers)
        with self._lock:
            known = [(name, log) for logs in (self._current, self._future) for name, log in logs.items()]
        topics = {topic: resolve(topic, layers) for topic in {name.topic for name, _ in known}}
        if self.cleaner is not None:
            self.cleaner.reconfigure(config)
        with self._lock:
            self._layers, self.config = layers, config
        for partition, log in known:
            self._update(partition, log, topics[partition.topic])

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        number = self.config.integer
        delay_ms = number("log.initial.task.delay.ms")
        for name, task, period in (
            ("kafka-log-retention", self.cleanup_logs, "log.retention.check.interval.ms"),
            ("kafka-log-flusher", self.flush_dirty_logs, "log.flush.scheduler.interval.ms"),
            (
                "kafka-recovery-point-checkpoint",
                self.checkpoint_log_recovery_offsets,
                "log.flush.offset.checkpoint.interval.ms",
            ),
            (
                "kafka-log-start-offset-checkpoint",
                self.checkpoint_log_start_offsets,
                "log.flush.start.offset.checkpoint.interval.ms",
            ),
        ):
            self._scheduler.schedule(name, task, delay_ms=delay_ms, period_ms=number(period))
        self._scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=delay_ms)
        self._scheduler.schedule(
            "highwatermark-checkpoint", self.checkpoint_high_watermarks, period_ms=HIGH_WATERMARK_INTERVAL_MS
        )

    def cleanup_logs(self) -> None:
        """Retention of the logs that are not compacted."""
        if self.cleaner is None:
            deleted = sum(log.delete_old_segments() for log in self.all_logs if not log.config.compact)
        else:
            paused = self.cleaner.manager.pause_cleaning_for_non_compacted_partitions()
            try:
                deleted = sum(log.delete_old_segments() for log in paused.values())
                with self._lock:
                    future = [log for partition, log in self._future.items() if partition in paused]
                deleted += sum(log.delete_old_segments() for log in future)
            finally:
                self.cleaner.resume_cleaning(paused)
        if deleted:
            _log.info("Log cleanup deleted %d segments", deleted)

    def flush_dirty_logs(self) -> None:
        """Flush the logs whose `flush.ms` is over."""
        now = self._clock()
        for log in self.all_logs:
            if now - log.last_flush_ms >= log.config.flush_ms:
                try:
                    log.flush()
                except LogError:
                    _log.exception("Error flushing %s", log.name)

    def delete_logs(self) -> None:
        """Remove the logs that were deleted long enough ago, and come back when the next one is due."""
        delay_ms = self.config.integer("log.segment.delete.delay.ms")
        while self._deleted and self._clock() - self._deleted[0].since_ms >= delay_ms:
            deleted = self._deleted.popleft()
            try:
                deleted.log.delete()
            except LogError:
                _log.exception("Exception while deleting %s", deleted.log.name)
        left_ms = delay_ms - (self._clock() - self._deleted[0].since_ms) if self._deleted else max(delay_ms, 1)
        self._scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=max(left_ms, 1))

    def checkpoint_log_recovery_offsets(self) -> None:
        """Write down up to where each log is flushed."""
        for path in self.live_log_dirs:
            self._checkpoint(self._directories[path], filenames.RECOVERY_POINTS, lambda log: log.recovery_point)

    def checkpoint_log_start_offsets(self) -> None:
        """Write down where each log starts, if it does not with its first segment."""
        for path in self.live_log_dirs:
            self._checkpoint(self._directories[path], filenames.LOG_START_OFFSETS, _start_offset)

    def checkpoint_high_watermarks(self) -> None:
        """Write down the high watermark of each log."""
        for path in self.live_log_dirs:
            self._checkpoint(self._directories[path], filenames.HIGH_WATERMARKS, lambda log: log.high_watermark)

    def _checkpoint(self, directory: LiveDirectory, name: str, offset: Callable[[Log], int | None]) -> None:
        with self._checkpointing:
            found = {}
            for partition, log in self._current_logs().items():
                at = offset(log) if log.parent_directory == directory.path else None
                if at is not None:
                    found[partition] = at
            try:
                directory.write_offsets(name, found)
            except KafkaStorageError:
                _log.exception("Disk error while writing %s in directory %s", name, directory.path)

    # ---- failing directories -----------------------------------------------------------------------------------------

    def handle_log_dir_failure(self, directory: str) -> None:
        """Drop a directory that failed, with its logs.

        Raises:
            KafkaStorageError: no directory is left.
        """
        path = self._fs.absolute_path(directory)
        if self.cleaner is not None:
            self.cleaner.handle_log_dir_failure(path)
        with self._lock:
            gone = self._directories.pop(path, None)
            for logs in (self._current, self._future):
                for partition in [name for name, log in logs.items() if log.parent_directory == path]:
                    logs.pop(partition).close_handlers()
            self._deleted = deque(one for one in self._deleted if one.log.parent_directory != path)
        if gone is not None:
            gone.release()
        if not self._directories:
            raise KafkaStorageError("No log directory is left: all of them failed")

    def _drop_failed(self) -> None:
        for failure in self.failures.failures:
            self.handle_log_dir_failure(failure.directory)

    def _fail(self, directory: str, message: str, error: OSError) -> None:
        _log.error("%s in %s: %s", message, directory, error)
        self.failures.maybe_add_offline_log_dir(directory, message, error)

    def _in(self, directory: LiveDirectory) -> list[Log]:
        return [log for log in self.all_logs if log.parent_directory == directory.path]


def _copy(current: Log, future: Log) -> None:
    """Append to a future log all that it lacks, flushed on return."""
    if future.log_end_offset < current.log_start_offset or future.log_end_offset > current.log_end_offset:
        future.truncate_fully_and_start_at(current.log_start_offset)
    while future.log_end_offset < current.log_end_offset:
        data = current.read(future.log_end_offset, _COPY_BYTES, FetchIsolation.LOG_END)
        future.append_as_follower(data.records, _ANY_EPOCH)
    future.maybe_increment_high_watermark(future.log_end_offset)
    future.maybe_increment_log_start_offset(current.log_start_offset)
    future.flush(force_active_segment=True)


def _start_offset(log: Log) -> int | None:
    """The log start offset, if it is not where the first segment begins."""
    return log.log_start_offset if log.log_start_offset > log.log_segments[0].base_offset else None


#: `replica.high.watermark.checkpoint.interval.ms`
HIGH_WATERMARK_INTERVAL_MS = 5_000

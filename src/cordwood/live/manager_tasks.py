"""The periodic tasks of a manager: retention, flushing, checkpoint files of its log directories.

Source: the tasks of Kafka's LogManager and ReplicaManager, with their names, delays and periods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from cordwood.common.errors import KafkaStorageError, LogError
from cordwood.common.types import TopicPartition
from cordwood.live.directories import LiveDirectory
from cordwood.live.log import Log
from cordwood.live.pool import LogPool
from cordwood.storage.formats import filenames

# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _start_offset(log: Log) -> int | None:
    """Return the log start offset, or None if the first segment begins there. A tiered log always has an entry."""
    is_needed = log.remote is not None or log.log_start_offset > log.log_segments[0].base_offset
    return log.log_start_offset if is_needed else None


#: For each file, a function that returns a log's offset; if it returns None, the file gets no entry for the log.
_OFFSETS: Mapping[str, Callable[[Log], int | None]] = {
    filenames.RECOVERY_POINTS: lambda log: log.recovery_point,
    filenames.LOG_START_OFFSETS: _start_offset,
    filenames.HIGH_WATERMARKS: lambda log: log.high_watermark,
}


class Checkpoints:
    """The checkpoint files of the live directories. A storage error takes its directory offline, and is only logged."""

    def __init__(
        self, directories: Mapping[str, LiveDirectory], logs: Callable[[], Mapping[TopicPartition, Log]]
    ) -> None:
        """Keep references to both mappings, which may change later."""
        self._directories = directories
        self._logs = logs
        #: Held while a file is written, so that older offsets never replace newer ones.
        self._lock = threading.Lock()

    def write(self, paths: Iterable[str], *names: str) -> None:
        """Write these files of the directories; skip directories that are no longer live."""
        for path in paths:
            directory = self._directories.get(path)
            if directory is not None:
                for name in names:
                    self._write(directory, name)

    def write_offsets(self, *paths: str) -> None:
        """Write the recovery points and start offsets of directories."""
        self.write(paths, filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)

    def _write(self, directory: LiveDirectory, name: str) -> None:
        offset_of = _OFFSETS[name]
        with self._lock:
            found = {}
            for partition, log in self._logs().items():
                offset = offset_of(log) if log.parent_directory == directory.path else None
                if offset is not None:
                    found[partition] = offset
            try:
                directory.write_offsets(name, found)
            except KafkaStorageError:
                _log.exception("Disk error while writing %s in directory %s", name, directory.path)


_log = logging.getLogger(__name__)


class ManagerTasks:
    """The periodic tasks for the logs of a pool."""

    def __init__(self, pool: LogPool, checkpoints: Checkpoints) -> None:
        self._pool = pool
        self._checkpoints = checkpoints

    def schedule(self) -> None:
        """Schedule all tasks."""
        number = self._pool.configs.broker.integer
        delay_ms = number("log.initial.task.delay.ms")
        for name, task, delay, period in (
            ("kafka-log-retention", self.cleanup_logs, delay_ms, "log.retention.check.interval.ms"),
            ("kafka-log-flusher", self.flush_dirty_logs, delay_ms, "log.flush.scheduler.interval.ms"),
            (
                "kafka-recovery-point-checkpoint",
                self.checkpoint_log_recovery_offsets,
                *(delay_ms, "log.flush.offset.checkpoint.interval.ms"),
            ),
            (
                "kafka-log-start-offset-checkpoint",
                self.checkpoint_log_start_offsets,
                *(delay_ms, "log.flush.start.offset.checkpoint.interval.ms"),
            ),
            (
                "highwatermark-checkpoint",
                self.checkpoint_high_watermarks,
                *(0, "replica.high.watermark.checkpoint.interval.ms"),
            ),
        ):
            self._pool.scheduler.schedule(name, task, delay_ms=delay, period_ms=number(period))

    def cleanup_logs(self) -> None:
        """Apply retention to the logs that are not compacted."""
        pool, cleaner = self._pool, self._pool.cleaner
        if cleaner is None:
            for log in pool.all:
                if not log.config.compact and not log.is_closed:
                    log.delete_old_segments()
        else:
            paused = cleaner.manager.pause_cleaning_for_non_compacted_partitions()
            try:
                with pool.lock:
                    future = [log for partition, log in pool.future.items() if partition in paused]
                for log in (*paused.values(), *future):
                    if not log.is_closed:  # another writer has claimed it
                        log.delete_old_segments()
            finally:
                cleaner.resume_cleaning(paused)

    def flush_dirty_logs(self) -> None:
        """Flush the logs whose last flush is at least `flush.ms` ago."""
        now_ms = self._pool.scheduler.clock()
        for log in self._pool.all:
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                try:
                    log.flush()
                except LogError:
                    _log.exception("Error flushing %s", log.name)

    def checkpoint_log_recovery_offsets(self) -> None:
        """Write the recovery point of each log."""
        self._checkpoints.write(self._pool.directories.live, filenames.RECOVERY_POINTS)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the start offset of each log, except where its first segment begins there."""
        self._checkpoints.write(self._pool.directories.live, filenames.LOG_START_OFFSETS)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of each log."""
        self._checkpoints.write(self._pool.directories.live, filenames.HIGH_WATERMARKS)

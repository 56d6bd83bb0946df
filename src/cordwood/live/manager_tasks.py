"""The periodic tasks of a manager: retention, flushing, checkpoints.

Source: the tasks of Kafka's LogManager and ReplicaManager, with their names, delays and periods.
"""

from __future__ import annotations

import logging

from cordwood.common.errors import LogError
from cordwood.live.checkpointing import Checkpoints
from cordwood.live.pool import LogPool
from cordwood.storage.formats import filenames

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
                if not log.config.compact:
                    log.delete_old_segments()
        else:
            paused = cleaner.manager.pause_cleaning_for_non_compacted_partitions()
            try:
                with pool.lock:
                    future = [log for partition, log in pool.future.items() if partition in paused]
                for log in (*paused.values(), *future):
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
